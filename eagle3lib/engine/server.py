"""Start a real SGLang server, and stop it so that no process is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from eagle3lib.engine import hook
from eagle3lib.engine.client import Client
from eagle3lib.errors import InputError
from eagle3lib.reading.launch import Launch

HOST = "127.0.0.1"
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
        port, log_path = _free_port(launch.integer("port")), Path(log_path)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        command = _command(launch, model_path, draft_path, port)
        if capture_folder is not None:
            command += ["--disable-cuda-graph", "--forward-hooks", hook.specifications(capture_folder)]
        with log_path.open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", SUPERVISOR, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(launch.env),
                start_new_session=True,  # Ctrl-C in a terminal reaches us alone; we stop the supervisor
            )
        try:
            server = cls(f"http://{HOST}:{port}")
            server._wait_until_ready(supervisor, log_path, timeout)
            yield server
        finally:
            _stop(supervisor)

    def _wait_until_ready(self, supervisor: subprocess.Popen[bytes], log_path: Path, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            code = supervisor.poll()
            if code is not None or time.monotonic() > deadline:
                end = f"it ended with exit code {code} at start"
                found = f"no answer within {timeout:.0f} s" if code is None else end
                raise InputError("the server", found, "a server that answers", _last_lines(log_path))
            time.sleep(POLL_SECONDS)


def _command(launch: Launch, model_path: str | Path, draft_path: str | Path | None, port: int) -> list[str]:
    """``launch``'s own flags, then what must hold: of a flag given twice SGLang's parser takes the last."""
    if launch.source == "server_info":
        raise InputError("launch", "a /server_info", "a command line, or its flags, to start a server from")
    command = [sys.executable, "-m", "sglang.launch_server"]
    for part in launch.parts:
        if part.spelled:
            command += [f"{part.spelled}={part.values[0]}"] if part.joined else [part.spelled, *part.values]
    if model_path:
        command += ["--model-path", str(model_path)]
    command += ["--host", HOST, "--port", str(port)]
    if draft_path:
        command += ["--speculative-draft-model-path", str(draft_path)]
    return command


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """This process's environment under ``given``, with this package importable in the server's processes."""
    paths = [str(PACKAGE_FOLDER), given.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **given, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _free_port(given: int | None) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, given or 0))
        except OSError as error:
            cure = "stop what listens there, or leave --port out and a free one is taken."
            raise InputError("--port", f"{given}, which is in use", "a free port", cure) from error
        return int(probe.getsockname()[1])


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
