"""From requests to captures for notebook 04: what entered the draft, as the hook wrote it, one capture a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from eagle3lib.engine.client import Client, Response, save_responses
from eagle3lib.engine.hook import FACTORY
from eagle3lib.engine.server import Server
from eagle3lib.errors import InputError
from eagle3lib.measuring.sample_states import Progress
from eagle3lib.reading.captures import Capture, write_capture
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.prompts import Prompt
from eagle3lib.reading.tensor_files import read_tensors


def capture_served(
    launch: str, server_url: str, target: str, draft: str, prompts: Sequence[Prompt], capture: Path, served: Path,
    max_new_tokens: int, progress: Progress = lambda share, words: None,
) -> list[Response]:  # fmt: skip
    """Send ``prompts`` one at a time and write what entered the draft for each.

    Without ``server_url`` the target and the draft are served as ``launch`` gives it, and the server is stopped
    again; an empty ``draft`` is the one that the flags name. Writes one capture a request to ``capture``, the
    responses as ``responses.jsonl`` to ``served``, and the server's log beside it.

    Raises:
        InputError: neither a server nor a launch line, a server without the capture hook, or one that does
            not start (with its last log lines).
    """
    progress(0.0, "connecting to the server" if server_url else "starting the server")
    with _server(launch, server_url, target, draft, capture / ".passes", served.with_name("server.log")) as client:
        responses = capture_requests(client, prompts, capture, max_new_tokens=max_new_tokens, progress=progress)
        save_responses(responses, served / "responses.jsonl")
    progress(1.0, "done")
    return responses


@contextmanager
def _server(
    launch_text: str, server_url: str, target: str, draft: str, passes: Path, log_path: Path
) -> Iterator[Client]:
    """A server with the capture hook: one that runs already, or one that lives as long as the block."""
    if server_url:
        yield Client(server_url.rstrip("/"))
        return
    launch = Launch.parse(launch_text)
    if not launch:
        raise InputError("launch", "nothing", "a launch line, a server_url or a capture folder", "give one of them")
    passes.mkdir(parents=True, exist_ok=True)
    with Server.start(launch, target, draft or None, log_path=log_path, capture_folder=passes) as server:
        yield server


def capture_requests(
    client: Client,
    prompts: Sequence[Prompt],
    folder: str | Path,
    *,
    max_new_tokens: int = 32,
    progress: Progress = lambda share, words: None,
) -> list[Response]:
    """Send ``prompts`` one at a time and write what entered the draft for each to ``folder``.

    Args:
        progress: is called with the share done and a description of what comes next.

    Raises:
        InputError: the server was started without the capture hook or served others meanwhile, or the draft's
            ``fc`` never ran (then the draft ignores the captured states).
    """
    passes = passes_folder(client)
    responses = []
    for index, prompt in enumerate(prompts):
        progress(index / len(prompts), f"request {index + 1} of {len(prompts)}")
        for old in passes.glob("rank*-pass*"):
            old.unlink()
        response = client.generate([prompt], max_new_tokens=max_new_tokens)[0]
        for capture in assemble(passes, f"{index:04d}", response):
            write_capture(capture, Path(folder) / capture.source)
        responses.append(response)
    return responses


def passes_folder(client: Client) -> Path:
    """Where a running server's capture hook writes.

    Raises:
        InputError: it was started without the hook, or writes to another machine's disk.
    """
    hooks = client.server_info().get("forward_hooks") or []
    folders = {Path(hook["config"]["folder"]) for hook in hooks if hook.get("hook_factory") == FACTORY}
    if len(folders) != 1 or not (folder := folders.pop()).parent.is_dir():
        found = "no capture hook that writes to a folder here"
        raise InputError(client.url, found, "a server started by this library, with a capture folder")
    return folder


def assemble(passes: Path, request: str, response: Response) -> list[Capture]:
    """One capture a rank of the request that alone was served while ``passes`` was written.

    The last row of each position counts: a rejected draft's row is replaced by a later pass. ``embedded_ids``
    becomes a stage: the token that the engine really paired with the row.
    """
    files = sorted(passes.glob("rank*-pass*.safetensors"))
    if not files:
        cure = "serve the draft with --speculative-algorithm EAGLE3; under EAGLE its fc is passed over."
        raise InputError("capture", "no pass through the draft's fc", "a pass for each verify step", cure)
    ids = torch.tensor(response.input_ids + response.output_ids)
    captures = []
    for rank, group in groupby(files, key=lambda path: path.name.split("-")[0]):
        parts = [_read_pass(path) for path in group]
        tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        positions = tensors.pop("positions")
        # The last token was never consumed: it has no state, and rows from there on are rejected drafts.
        last_row = {int(position): row for row, position in enumerate(positions) if position < len(ids) - 1}
        kept = torch.tensor(sorted(last_row), dtype=torch.long)
        rows = torch.tensor([last_row[position] for position in kept.tolist()], dtype=torch.long)
        stages = {stage: value[rows] for stage, value in tensors.items()}
        source = f"request{request}-{rank}.safetensors"
        captures.append(Capture(source, request, ids[kept], kept, stages, rank=int(rank.removeprefix("rank"))))
    return captures


def _read_pass(path: Path) -> dict[str, Tensor]:
    tensors, metadata = read_tensors(path)
    if metadata["requests"] != "1":
        raise InputError(
            "capture", "a pass over several requests", "one request at a time", "let no one else send requests."
        )
    return tensors
