"""One notebook run by papermill in a process of its own, judged by the record it leaves.

papermill cannot be the judge: when a kernel dies, the notebook it writes calls every cell completed, and
``sys.exit()`` in a cell ends a notebook with exit code 0 and the rest unrun.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from eagle3lib.errors import InputError
from eagle3lib.reading.files import write_text
from eagle3lib.reporting.index import Outcome
from eagle3lib.reporting.pages import masked_notebook, write_page
from eagle3lib.reporting.privacy import mask_text
from eagle3lib.reporting.records import read_record, record_path

#: In the environment of everything that a notebook starts, so that what outlives a dead kernel is found.
_MARK = "EAGLE3_NOTEBOOK_RUN"
_GRACE = 15.0  # seconds for a kernel to end what it started


class Execution:
    """A notebook at work; ``wait`` returns its outcome, ``interrupt`` may be called from another thread."""

    def __init__(self, notebook: Path, folder: Path, parameters: Mapping[str, Any], log: Callable[[str], None]) -> None:
        self.stem, self.folder, self.log = notebook.stem, folder, log
        self.output = folder / f"{self.stem}.ipynb"
        self.mark = uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (record_path(folder, self.stem), self.output, folder / f"{self.stem}.html"):
            stale.unlink(missing_ok=True)
        library = Path(__file__).resolve().parents[2]
        search = os.pathsep.join(filter(None, [str(library), os.environ.get("PYTHONPATH")]))
        # A file, since a command line is there for every user of the machine to read.
        self.given = tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8")  # noqa: SIM115
        yaml.safe_dump(dict(parameters), self.given)
        self.given.flush()
        self.messages = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        paths = [str(path).translate(_BRACES) for path in (notebook, self.output)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "papermill", *paths, "--parameters_file", self.given.name,
             "--kernel", "python3", "--language", "python",
             "--no-progress-bar", "--log-level", "WARNING", "--stderr-file", "-"],
            env={**os.environ, _MARK: self.mark, "PYTHONPATH": search}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=self.messages, start_new_session=True,
        )  # fmt: skip

    def wait(self) -> Outcome:
        """Relay progress until the end, clear up, mask the notebook, write its page."""
        relay = threading.Thread(target=self._relay, daemon=True)
        relay.start()
        try:
            self.process.wait()
        finally:
            self.clear()  # before the relay's end: what outlives a dead kernel holds the pipe open
        relay.join()
        outcome = self._judge()
        if self.output.is_file():
            import nbformat

            nb = masked_notebook(nbformat.read(self.output, as_version=4))
            write_text(self.output, json.dumps(nb, indent=1, ensure_ascii=False) + "\n")
        record = read_record(self.folder, self.stem) if outcome.state != "failed" else None
        failure = outcome.reason if outcome.state == "failed" else ""
        write_page(self.output, self.folder / f"{self.stem}.html", record, failure, index="../index.html")
        return outcome

    def interrupt(self) -> None:
        """As Ctrl-C in papermill: it shuts its kernel down, whose exit stops what it started."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.clear()

    def clear(self) -> None:
        """End whatever the notebook left running, a server of a killed kernel for one."""
        left = [process for process in psutil.process_iter() if _environment(process).get(_MARK) == self.mark]
        for process in left:
            _signal(process, signal.SIGTERM)
        _, stubborn = psutil.wait_procs(left, timeout=_GRACE if left else 0)
        for process in stubborn:
            _signal(process, signal.SIGKILL)
        self.given.close()

    def _relay(self) -> None:
        """Lines of the notebook's stderr; a bar, which rewrites its line, at most every two seconds."""
        pending, last = b"", 0.0
        while chunk := self.process.stdout.read1(4096):
            *lines, pending = re.split(rb"(?<=[\r\n])", pending + chunk)
            for line in lines:
                whole = line.endswith(b"\n")
                text = line.decode("utf-8", "replace").strip()
                if text and (whole or time.monotonic() - last > 2):
                    last = time.monotonic()
                    self.log(mask_text(text))

    def _judge(self) -> Outcome:
        try:
            record = read_record(self.folder, self.stem)
        except InputError as error:
            refused = record_path(self.folder, self.stem).exists()
            return Outcome(self.stem, "failed", mask_text(str(error) if refused else self._failure()))
        return Outcome(self.stem, record["status"], str(record["results"].get("reason", "")))

    def _failure(self) -> str:
        """Why there is no record, in one line."""
        self.messages.seek(0)
        log = self.messages.read()
        if error := raised_in(self.output):
            return error
        if self.process.returncode < 0 or "DeadKernelError" in log or "Kernel died" in log:
            return "the kernel died before it wrote a record (killed, or out of memory)"
        if self.process.returncode == 0:
            return "the notebook ended early, without an error and without a record"
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        return lines[-1][:400] if lines else f"papermill ended with exit code {self.process.returncode}"


def raised_in(notebook: Path) -> str:
    """The first line of the exception that an executed notebook holds; ``""`` when there is none."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return ""
    errors = [output for cell in cells for output in cell.get("outputs", ()) if output.get("output_type") == "error"]
    if not errors:
        return ""
    if errors[-1].get("ename") == "SystemExit" and errors[-1].get("evalue") in ("", "0", "None"):
        return ""  # ``sys.exit()``: papermill takes it for success
    words = f"{errors[-1].get('ename')}: {errors[-1].get('evalue')}".strip()
    return re.sub(r"\x1b\[[0-9;]*m", "", words.splitlines()[0])[:600]


#: papermill formats its paths; a brace in one stands for itself.
_BRACES = {ord("{"): "{{", ord("}"): "}}"}


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):  # another user's, or gone
        return {}


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:  # gone meanwhile
        return
