"""Capture a few requests for notebook 04: on a server that runs already, or on one that lives as long as this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from eagle3lib.engine.capture import capture_requests, passes_folder
from eagle3lib.engine.client import Client, Response, save_responses
from eagle3lib.engine.server import Server
from eagle3lib.errors import InputError
from eagle3lib.measuring.sample_states import Progress
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.prompts import Prompt


def capture_served(
    launch: str, server_url: str, target: str, draft: str, prompts: Sequence[Prompt], capture: Path, served: Path,
    max_new_tokens: int, progress: Progress = lambda share, words: None,
) -> list[Response]:  # fmt: skip
    """Ask ``prompts`` one at a time and write what entered the draft for each.

    Without ``server_url`` the target and the draft are served as ``launch`` says, and the server is stopped
    again; an empty ``draft`` is the one that the flags name. Writes one capture a request to ``capture``, the
    answers as ``responses.jsonl`` to ``served``, and the server's log beside it.

    Raises:
        InputError: neither a server nor a launch line, a server without the capture hook, or one that does
            not start (with its last log lines).
    """
    progress(0.0, "asking the server" if server_url else "starting the server")
    with _client(launch, server_url, target, draft, capture / ".passes", served) as (client, passes):
        responses = capture_requests(client, passes, prompts, capture, max_new_tokens=max_new_tokens, progress=progress)
        save_responses(responses, served / "responses.jsonl")
    progress(1.0, "done")
    return responses


@contextmanager
def _client(
    launch_text: str, server_url: str, target: str, draft: str, passes: Path, served: Path
) -> Iterator[tuple[Client, Path]]:
    if server_url:
        client = Client(server_url.rstrip("/"))
        yield client, passes_folder(client)
        return
    launch = Launch.parse(launch_text)
    if not launch:
        raise InputError("launch", "nothing", "a launch line, a server_url or a capture folder", "give one of them")
    log = served.with_name("server.log")
    with Server.start(launch, target, draft or None, log_path=log, capture_folder=passes) as server:
        yield server, passes
