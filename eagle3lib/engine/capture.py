"""From the passes that the hook wrote to one capture a request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from eagle3lib.engine.client import Client, Response
from eagle3lib.engine.hook import FACTORY
from eagle3lib.errors import InputError
from eagle3lib.measuring.sample_states import Progress
from eagle3lib.reading.captures import Capture, write_capture
from eagle3lib.reading.prompts import Prompt
from eagle3lib.reading.tensor_files import read_tensors


def capture_requests(
    client: Client,
    passes: str | Path,
    prompts: Sequence[Prompt],
    folder: str | Path,
    *,
    max_new_tokens: int = 32,
    progress: Progress = lambda share, words: None,
) -> list[Response]:
    """Send ``prompts`` one at a time and write what entered the draft for each to ``folder``.

    Args:
        passes: where the server's hook writes: ``Server.start``'s ``capture_folder``, or
            ``passes_folder(client)``.
        progress: is told the share done, and in words what comes next.

    Raises:
        InputError: the server served someone else meanwhile, or the draft's ``fc`` never ran (then the
            draft ignores the captured states).
    """
    passes = Path(passes)
    responses = []
    for index, prompt in enumerate(prompts):
        progress(index / len(prompts), f"request {index + 1} of {len(prompts)}")
        for old in passes.glob("rank*-pass*"):
            old.unlink()
        response = client.ask([prompt], max_new_tokens=max_new_tokens)[0]
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
    for name, group in groupby(files, key=lambda path: path.name.split("-")[0]):
        tensors = _join([_read_pass(path) for path in group])
        positions = tensors.pop("positions")
        # The last token was never consumed: it has no state, and rows from there on are rejected drafts.
        last_row = {int(position): row for row, position in enumerate(positions) if position < len(ids) - 1}
        kept = torch.tensor(sorted(last_row), dtype=torch.long)
        rows = torch.tensor([last_row[position] for position in kept.tolist()], dtype=torch.long)
        stages = {stage: value[rows] for stage, value in tensors.items()}
        source = f"request{request}-{name}.safetensors"
        captures.append(Capture(source, request, ids[kept], kept, stages, rank=int(name.removeprefix("rank"))))
    return captures


def _read_pass(path: Path) -> dict[str, Tensor]:
    tensors, metadata = read_tensors(path)
    if metadata["requests"] != "1":
        raise InputError("capture", "a pass over several requests", "one request at a time", "let nobody else ask.")
    return tensors


def _join(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
