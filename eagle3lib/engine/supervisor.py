"""Runs one command and leaves no process of it behind, however the caller ends.

The caller holds the write end of this process's standard input. When the caller closes it, or dies by any
means (SIGKILL included), the read below returns and the whole process tree is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType

import psutil

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 3.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(command: list[str]) -> int:
    """Run ``command`` until it ends or standard input closes; its exit code, or 128 + the signal's number."""
    if sys.platform == "linux":  # orphaned grandchildren become ours, so that they are still found
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in SIGNALS:
        signal.signal(number, _leave)
    child = None
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        threading.Thread(target=_leave_with_caller, daemon=True).start()
        code = child.wait()
        return code if code >= 0 else 128 - code
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes] | None) -> None:
    """Let the command clean up after itself for a moment, then kill whatever is left of its tree."""
    if child is not None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
    while tree := psutil.Process().children(recursive=True):
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, timeout=GRACE_SECONDS)


def _leave(number: int, frame: FrameType | None) -> None:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def _leave_with_caller() -> None:
    while os.read(0, 1024):  # nothing is ever sent; an empty read means that the caller is gone
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
