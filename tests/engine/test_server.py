"""The real engine: started, asked, captured from, stopped; nothing survives."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch

from eagle3lib.engine.capture import capture_requests
from eagle3lib.engine.server import Server
from eagle3lib.engine.sweep import run_sweep, setting_launch
from eagle3lib.errors import InputError
from eagle3lib.measuring.streams import match_streams
from eagle3lib.reading.captures import read_capture
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.points import OFF, read_points
from eagle3lib.reading.prompts import Prompt
from tests.engine.engine_jobs import ENVIRONMENT
from tests.tiny import tiny_draft, tiny_target

pytest.importorskip("sglang")
pytest.importorskip("eagle3_sglang_cpu")

LAUNCH = " ".join(
    [
        *(f"{name}={value}" for name, value in ENVIRONMENT.items()),
        "python -m sglang.launch_server --device cpu --attention-backend intel_amx --dtype float32",
        "--context-length 512 --max-running-requests 4 --max-total-tokens 4096 --skip-server-warmup",
        "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1",
        "--speculative-num-draft-tokens 4",
    ]
)
PROMPTS = [Prompt((1, 10, 20, 30, 40), "a"), Prompt((1, 11, 22, 33, 44, 55, 66), "b"), Prompt((1, 7, 9), "a")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    target = tiny_target(folder / "target")
    tiny_draft(folder / "draft", target, layer_ids=(-1, 2, 5))  # boundaries 0, 3, 6
    return folder, target


@pytest.fixture(scope="module", params=[(3, 1, 4), (3, 4, 8)], ids=["chain", "tree"])
def served(request, models, tmp_path_factory):
    """Responses, captures and the server's processes, from one server that has been stopped."""
    folder, _ = models
    out = tmp_path_factory.mktemp("served")
    with Server.start(
        setting_launch(Launch.parse(LAUNCH), request.param),
        folder / "target",
        folder / "draft",
        log_path=out / "log",
        capture_folder=out / "passes",
    ) as server:
        family = psutil.Process().children(recursive=True)
        captured = capture_requests(server, PROMPTS, out / "capture", max_new_tokens=24)
        together = server.generate(PROMPTS, concurrency=3, max_new_tokens=24)
    return captured, together, read_capture(out / "capture"), family


def test_greedy_tokens_equal_hugging_face(models, served):
    target = models[1]
    for responses in served[:2]:
        for prompt, response in zip(PROMPTS, responses, strict=True):
            ids = torch.tensor([prompt.input_ids])
            expected = target.generate(ids, max_new_tokens=24, do_sample=False)[0, len(prompt.input_ids) :]
            assert list(response.output_ids) == expected.tolist()
            assert response.category == prompt.category


def test_ordered_steps_sum_to_the_histogram(served):
    """Where it was seen: on a starved machine two steps may come in one chunk, and then no order is claimed."""
    accepted = 0
    for response in served[0]:
        histogram = response.meta_info["spec_correct_drafts_histogram"]
        steps = response.accepted_per_step
        if steps is None:
            continue
        counts = Counter(steps)
        assert [counts[j] for j in range(len(histogram))] == histogram
        accepted += sum(steps)
    assert accepted > 0, "no order was seen in any stream, or the tiny draft is never right"


def test_captured_rows_are_the_target_states(models, served):
    target, captures = models[1], served[2]
    references = []
    for capture, response in zip(captures, served[0], strict=True):
        ids = torch.tensor(response.input_ids + response.output_ids)
        assert capture.input_ids.tolist() == ids[:-1].tolist()
        assert capture.positions.tolist() == list(range(len(ids) - 1))
        assert capture.stages["embedded_ids"].tolist() == ids[1:].tolist()
        with torch.no_grad():
            states = target(ids[None, :-1], output_hidden_states=True).hidden_states
        references.append({k: states[k][0] for k in range(8)} | {"final_norm": states[8][0]})
        expected = torch.stack([states[k][0] for k in (0, 3, 6)], 1)  # [T, 3, H]
        found = capture.streams(64)
        assert (found - expected).norm() / expected.norm() < 1e-5
    matches = match_streams([capture.streams(64) for capture in captures], references)
    assert [(match.boundary, match.shift) for match in matches] == [(0, 0), (3, 0), (6, 0)]


def test_nothing_survives_a_stopped_server(served):
    family = served[3]
    assert len(family) >= 3, "supervisor, server and scheduler"
    assert not [process for process in family if process.is_running()]


def test_a_server_that_dies_says_why_and_leaves_nothing(models, tmp_path):
    before = set(psutil.Process().children(recursive=True))
    launch = Launch.parse(LAUNCH + " --no-such-flag")
    with (
        pytest.raises(InputError, match="no-such-flag"),
        Server.start(launch, models[0] / "target", models[0] / "draft", log_path=tmp_path / "log"),
    ):
        pass
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_port_in_use_is_one_clear_error(models, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        launch = Launch.parse(f"{LAUNCH} --port {taken.getsockname()[1]}")
        with (
            pytest.raises(InputError, match="in use"),
            Server.start(launch, models[0] / "target", models[0] / "draft", log_path=tmp_path / "log"),
        ):
            pass


PARENT = """
import sys
from eagle3lib.engine import supervisor
import subprocess
child = subprocess.Popen([sys.executable, "-m", supervisor.__name__, sys.executable, "-c", sys.argv[1]],
                         stdin=subprocess.PIPE, start_new_session=True)
print("started", flush=True)
child.wait()
"""
#: A command that ignores SIGTERM, with a child in a session of its own whose parent is gone.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
middle = "import subprocess; subprocess.Popen(%r, start_new_session=True)" % sleeper
subprocess.run([sys.executable, "-c", middle])
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_survives_a_parent_that_is_killed(number):
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, STUBBORN], cwd=root, stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None and parent.stdout.readline() == b"started\n"
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 30
    while len(family) < 3 and time.monotonic() < deadline:  # supervisor, command, orphan
        family = psutil.Process(parent.pid).children(recursive=True)
        time.sleep(0.1)
    assert len(family) >= 3
    time.sleep(0.5)
    family = psutil.Process(parent.pid).children(recursive=True)
    os.kill(parent.pid, number)
    parent.wait(30)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


def test_a_sweep_writes_each_point_as_it_finishes_and_goes_on_after_a_refusal(models, tmp_path):
    folder = models[0]
    path, watched = tmp_path / "points.jsonl", []
    points = run_sweep(
        Launch.parse(LAUNCH),
        folder / "target",
        folder / "no-draft-here",
        PROMPTS,
        grid=[(3, 1, 4), OFF],
        concurrency=[1, 2],
        path=path,
        repeats=2,
        max_new_tokens=8,
        watch=lambda point: watched.append(len(path.read_text().splitlines())),
    )
    assert [(p.setting, p.concurrency, p.repeat, p.status) for p in points] == [
        ((3, 1, 4), 1, 0, "refused"),
        ((3, 1, 4), 2, 0, "refused"),
        *((OFF, load, repeat, "ok") for load in (1, 2) for repeat in (0, 1)),
    ]
    assert "no-draft-here" in points[0].reason
    assert watched == [1, 2, 3, 4, 5, 6] and read_points(path) == points
    assert not [p for p in psutil.Process().children(recursive=True) if p.is_running()]
