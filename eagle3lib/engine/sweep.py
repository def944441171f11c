"""Measure a grid of speculative settings on real servers, one server a setting."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from eagle3lib.engine.client import Client
from eagle3lib.engine.server import Server
from eagle3lib.engine.speculation import SETTING_FLAGS
from eagle3lib.errors import InputError
from eagle3lib.measuring.acceptance import from_histograms
from eagle3lib.reading.launch import SETTING, Launch
from eagle3lib.reading.points import Point
from eagle3lib.reading.prompts import Prompt
from eagle3lib.reading.setting import OFF, Setting


def run_sweep(
    launch: Launch,
    model_path: str | Path,
    draft_path: str | Path | None,
    prompts: Sequence[Prompt],
    *,
    grid: Sequence[Setting],
    concurrency: Sequence[int],
    path: str | Path,
    repeats: int = 3,
    max_new_tokens: int = 64,
    timeout: float = 600.0,
    watch: Callable[[Point], None] = lambda point: None,
) -> list[Point]:
    """Serve each setting, send the prompts at each load, and append every finished point to ``path`` (JSONL) at once.

    A setting whose server does not start is ``refused`` at every load, one that breaks while it serves is
    ``failed``; the other settings are still measured.

    Args:
        launch: flags and environment that all settings share; its speculative settings are replaced.
        path: points file; the servers' logs lie beside it.
        watch: called with each finished point.

    Raises:
        InputError: neither ``launch`` nor ``model_path`` gives what to serve.
    """
    if not model_path and not launch.flags.keys() & {"model_path", "config"}:
        cure = "give target, or a launch line with --model-path; finished points need no server."
        raise InputError("target", "none, nor one in launch", "a model to serve", cure)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    points = []

    def finish(point: Point) -> None:
        points.append(point)
        with path.open("a") as file:
            file.write(json.dumps(asdict(point)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        watch(point)

    for setting in grid:
        draft = None if tuple(setting) == OFF else draft_path
        own, log_path = (
            setting_launch(launch, setting),
            path.with_name(f"{path.stem}-{'-'.join(map(str, setting))}.log"),
        )
        try:
            with Server.start(own, model_path, draft, log_path=log_path, timeout=timeout) as server:
                note = _served_otherwise(server, setting)
                for load in concurrency:
                    for point in _measure(server, setting, load, prompts, repeats, max_new_tokens, note):
                        finish(point)
        except InputError as error:
            for load in concurrency:
                finish(Point(*setting, concurrency=load, status="refused", reason=str(error)))
    return points


def setting_launch(launch: Launch, setting: Setting) -> Launch:
    """``launch`` with ``[num_steps, topk, num_draft_tokens]``; (0, 0, 0) takes all speculative flags away."""
    if tuple(setting) == OFF:
        changes = {part.spelled: None for part in launch.parts if part.name.startswith("speculative_")}
    else:
        changes = dict(zip(SETTING_FLAGS, setting, strict=True))
        if "speculative_algorithm" not in launch.flags:
            changes["--speculative-algorithm"] = "EAGLE3"
    return Launch.parse(launch.render(changes))


def _measure(
    client: Client, setting: Setting, load: int, prompts: Sequence[Prompt], repeats: int, max_new_tokens: int, note: str
) -> Iterator[Point]:
    try:
        client.generate(prompts[:load], concurrency=load, max_new_tokens=8)  # warm-up
        for repeat in range(repeats):
            client.flush()
            started = time.perf_counter()
            responses = client.generate(
                prompts, concurrency=load, max_new_tokens=max_new_tokens, flush=False, stream=False
            )
            seconds = time.perf_counter() - started
            tokens = sum(len(response.output_ids) for response in responses)
            histograms = [response.histogram for response in responses if response.histogram]
            length = from_histograms("served", "engine", "", histograms).accept_length.value if histograms else None
            rates = {"tokens_per_second": tokens / seconds, "accept_length": length}
            yield Point(*setting, concurrency=load, repeat=repeat, reason=note, **rates)
    except InputError as error:
        yield Point(*setting, concurrency=load, status="failed", reason=str(error))


def _served_otherwise(client: Client, setting: Setting) -> str:
    """What the engine made of the setting, where it changed it (with topk 1, num_steps + 1 draft tokens)."""
    info = client.server_info()
    served = tuple(info.get(name) or 0 for name in SETTING)
    return "" if served == tuple(setting) else f"served as {'/'.join(map(str, served))}"
