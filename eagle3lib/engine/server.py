"""Start a real SGLang server, and stop it so that nothing survives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from eagle3lib.engine import hook
from eagle3lib.engine.client import Client
from eagle3lib.errors import InputError
from eagle3lib.reading.launch import Launch

SUPERVISOR = "eagle3lib.engine.supervisor"
PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
LAST_LINES = 12
POLL_SECONDS = 0.25
#: Longer than the supervisor's grace, so that it can finish its work.
STOP_SECONDS = 30.0


class Server(Client):
    """A server that this process started."""

    @classmethod
    @contextmanager
    def start(
        cls,
        launch: Launch,
        model_path: str | Path,
        draft_path: str | Path | None,
        *,
        log_path: str | Path,
        capture_folder: str | Path | None = None,
        timeout: float = 600.0,
    ) -> Iterator[Server]:
        """Serve ``model_path`` ("": the flags name it) with ``launch``'s flags and environment until the block is left.

        Args:
            draft_path: ``None`` or "" leaves the draft to the flags; with a path it replaces theirs.
            log_path: the server's standard output and error; its folder is made.
            capture_folder: write the draft's inputs there, stage by stage (see ``hook.STAGES``).
            timeout: seconds until the server must answer.

        Raises:
            InputError: the port is in use, the server died at start (with its last log lines) or is too slow.
        """
        host, port = "127.0.0.1", _free_port(launch.integer("port"))
        log_path = Path(log_path)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        command = _command(launch, model_path, draft_path, host, port)
        if capture_folder is not None:
            command += ["--disable-cuda-graph", "--forward-hooks", hook.specifications(capture_folder)]
        with log_path.open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", SUPERVISOR, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(launch.env),
                start_new_session=True,  # Ctrl-C in a terminal reaches us alone; we tell the supervisor
            )
        try:
            url = f"http://{host}:{port}"
            _wait_until_ready(supervisor, url, log_path, timeout)
            yield cls(url)
        finally:
            _stop(supervisor)


def _command(launch: Launch, model_path: str | Path, draft_path: str | Path | None, host: str, port: int) -> list[str]:
    """``launch``'s own words, then what must hold: of a flag given twice SGLang's parser takes the last."""
    if launch.source == "server_info":
        raise InputError("launch", "a /server_info", "a command line, or its flags, to start a server from")
    command = [sys.executable, "-m", "sglang.launch_server"]
    for part in launch.parts:
        if part.spelled:
            command += [f"{part.spelled}={part.values[0]}"] if part.joined else [part.spelled, *part.values]
    if model_path:
        command += ["--model-path", str(model_path)]
    command += ["--host", host, "--port", str(port)]
    if draft_path:
        command += ["--speculative-draft-model-path", str(draft_path)]
    return command


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """This process's environment under ``given``, with this package importable in the server's processes."""
    merged = dict(os.environ) | dict(given)
    paths = [str(PACKAGE_FOLDER), given.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    return merged | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _free_port(asked: int | None) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", asked or 0))
        except OSError as error:
            cure = "stop what listens there, or leave --port out and a free one is taken."
            raise InputError("--port", f"{asked}, which is in use", "a free port", cure) from error
        return int(probe.getsockname()[1])


def _wait_until_ready(supervisor: subprocess.Popen[bytes], url: str, log_path: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not _answers(url):
        code = supervisor.poll()
        if code is not None or time.monotonic() > deadline:
            found = f"no answer within {timeout:.0f} s" if code is None else f"it ended with exit code {code} at start"
            raise InputError("the server", found, "a server that answers", _last_lines(log_path))
        time.sleep(POLL_SECONDS)


def _answers(url: str) -> bool:
    """Both routes answer: the first when the server listens, the second when its own warm-up is done."""
    try:
        for route in ("/model_info", "/health"):
            with urllib.request.urlopen(url + route, timeout=30):
                pass
    except OSError:  # refused, timed out, or an HTTP error
        return False
    return True


def _last_lines(log_path: Path) -> str:
    lines = [line for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("  ") or "[-" not in line]  # argparse's list of all flags
    return f"the last lines of {log_path.name} say why:\n" + "\n".join(lines[-LAST_LINES:])


def _stop(supervisor: subprocess.Popen[bytes]) -> None:
    assert supervisor.stdin is not None
    supervisor.stdin.close()
    try:
        supervisor.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
