"""A plan run to its end: notebooks one by one within a run, runs side by side, the index always current."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import click

from eagle3lib.batch.cure import cured_parameters
from eagle3lib.batch.execute import Execution
from eagle3lib.batch.plan import Plan, PlannedRun
from eagle3lib.batch.turns import Turns
from eagle3lib.errors import InputError
from eagle3lib.reporting.index import Outcome, run_summary, write_index
from eagle3lib.reporting.parameters import MODELS
from eagle3lib.reporting.privacy import mask, mask_text
from eagle3lib.reporting.provenance import config_digests
from eagle3lib.reporting.records import jsonable, read_record

#: Notebooks whose answer depends on what others left in the run folder.
READS = {
    "03_acceptance": {"04_capture_diff"},  # what its server said, where the plan runs 04 first
    "04_capture_diff": {"02_manual_forward"},
    "06_verdict": set(MODELS) - {"06_verdict"},
}
#: Notebooks that other work on the machine would disturb.
MEASURES_SPEED = {"05_throughput_sweep"}
INTERRUPTED = 130


class Batch:
    """One execution of a plan; ``run`` returns the exit code: 0, 1 (failed or partial) or 130 (Ctrl-C)."""

    def __init__(self, plan: Plan, notebooks: Path, resume: bool = False, jobs: int = 1) -> None:
        self.plan, self.notebooks, self.resume, self.jobs = plan, notebooks, resume, jobs
        self.outcomes = {run.name: {stem: Outcome(stem) for stem in run.stems} for run in plan.runs}
        self.at_work: set[Execution] = set()
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.turns = Turns()

    def run(self) -> int:
        self.plan.out.mkdir(parents=True, exist_ok=True)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        pool = ThreadPoolExecutor(self.jobs)
        try:
            done: dict[str, Future[None]] = {}
            for run in self.plan.runs:  # in order: a run waits only for earlier ones, which hold a thread already
                done[run.name] = pool.submit(self._run, run, done.get(run.cured_from))
            while wait(done.values(), timeout=1.0).not_done:
                pass
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._stop(pool)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return INTERRUPTED
        finally:
            signal.signal(signal.SIGTERM, before)
            pool.shutdown(wait=True)
            self._write_index()
        for name, future in done.items():
            if error := future.exception():
                raise RuntimeError(f"run {name} could not be carried out") from error
        self._print_summary()
        states = {outcome.state for outcomes in self.outcomes.values() for outcome in outcomes.values()}
        return 0 if states == {"finished"} else 1

    def _run(self, run: PlannedRun, source: Future[None] | None) -> None:
        if source is not None:
            wait([source])
        if self.stopping.is_set():
            return
        try:
            changed = self._cure(run) if run.cured_from else {}
        except InputError as error:
            for stem in run.stems:
                self._record(run, Outcome(stem, "failed", mask_text(f"not run: {error}")))
            return
        again: set[str] = set()
        for stem in run.stems:
            if self.stopping.is_set():
                return
            parameters = run.parameters_of(stem, changed)
            if self.resume and not (again & READS.get(stem, set())) and is_finished(run.folder, stem, parameters):
                self._record(run, Outcome(stem, "finished"), "finished before")
                continue
            again.add(stem)
            with self.turns.take(alone=stem in MEASURES_SPEED and not parameters["points"]):
                self._record(run, self._execute(run, stem, parameters))

    def _execute(self, run: PlannedRun, stem: str, parameters: Mapping[str, Any]) -> Outcome:
        self._log(run, stem, "started")
        with self.lock:  # so that an interrupt finds every execution that has begun
            if self.stopping.is_set():
                return Outcome(stem)
            execution = Execution(
                self.notebooks / f"{stem}.ipynb", run.folder, parameters, lambda line: self._log(run, stem, line)
            )
            self.at_work.add(execution)
        try:
            return execution.wait()
        finally:
            self.at_work.discard(execution)

    def _cure(self, run: PlannedRun) -> dict[str, Any]:
        source = next(other for other in self.plan.runs if other.name == run.cured_from)
        verdict = self.outcomes[source.name]["06_verdict"]
        if verdict.state not in ("finished", "partial"):
            raise InputError(f"cured_from: {source.name}", f"a verdict that {verdict.state}", "a verdict with remedies")
        run.folder.mkdir(parents=True, exist_ok=True)
        known = {**run.parameters_of("01_config_inspection"), **run.parameters_of("06_verdict")}
        return cured_parameters(source.folder, known, run.folder)

    def _stop(self, pool: ThreadPoolExecutor) -> None:
        click.echo("interrupted: ending kernels and servers", err=True)
        with self.lock:
            self.stopping.set()
            at_work = list(self.at_work)
        pool.shutdown(wait=False, cancel_futures=True)
        with ThreadPoolExecutor(max(1, len(at_work))) as stoppers:
            stoppers.map(Execution.interrupt, at_work)

    def _record(self, run: PlannedRun, outcome: Outcome, words: str = "") -> None:
        self.outcomes[run.name][outcome.stem] = outcome
        reason = f": {outcome.reason}" if outcome.reason else ""
        self._log(run, outcome.stem, words or outcome.state + reason)
        self._write_index()

    def _write_index(self) -> None:
        with self.lock:
            runs = [(name, list(outcomes.values())) for name, outcomes in self.outcomes.items()]
            write_index(self.plan.out, self.plan.out.name, runs)

    def _print_summary(self) -> None:
        for run in self.plan.runs:
            row = run_summary(run.folder, run.name, list(self.outcomes[run.name].values()))
            causes = ", ".join(f"{cause['kind']} {cause['confidence']}" for cause in row["causes"])
            click.echo(f"{run.name}: {row['state']}; {row['headline']}" + (f" ({causes})" if causes else ""))
        click.echo(mask_text(str(self.plan.out / "index.html")))

    def _log(self, run: PlannedRun, stem: str, line: str) -> None:
        click.echo(f"[{run.name} {stem[:2]}] {line}", file=sys.stderr)


def is_finished(folder: Path, stem: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a finished record of the same parameters, over the same config files, is there already."""
    try:
        record = read_record(folder, stem)
    except InputError:
        return False
    digests = config_digests({role: parameters[role] for role in ("draft", "target")})
    return (
        record["status"] == "finished"
        and record.get("parameters") == mask(jsonable(parameters))
        and (record.get("provenance") or {}).get("files") == digests
    )
