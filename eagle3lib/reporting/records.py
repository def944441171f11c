"""A notebook's run: checked parameters in, one record out as the last act.

    run = start("02_manual_forward", globals())   # after the parameters and the imports
    p = run.filled_in()                           # the parameters, or what is to be filled in
    run.note(finding)
    run.finish({"depths": depths})                # or finish(results, partial="no samples given")

No record, no result: a run whose kernel died, or whose input was refused, leaves none, not even an older one.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from eagle3lib.errors import InputError
from eagle3lib.findings.finding import SEVERITIES, Finding
from eagle3lib.findings.verdict import NO_RECORD
from eagle3lib.reading.files import parse_object, read_text, write_text
from eagle3lib.reporting.jsonable import jsonable
from eagle3lib.reporting.needs import check_filled_in
from eagle3lib.reporting.parameters import MODELS, Parameters, validate
from eagle3lib.reporting.privacy import mask
from eagle3lib.reporting.provenance import provenance

SCHEMA = 1
Item = TypeVar("Item")


@dataclass
class Run:
    """One notebook at work. ``findings`` and ``figures`` grow; everything else is fixed at the start."""

    notebook: str
    parameters: Parameters
    run_dir: Path
    started: str
    provenance: Mapping[str, Any]
    findings: list[Finding] = field(default_factory=list)

    def filled_in(self) -> Parameters:
        """The parameters. Raises ``NotFilledIn`` where one is empty that this notebook cannot do without."""
        untouched = self.run_dir == resolve_run_dir("") and not any(self.run_dir.glob("0*.json"))
        changed = {"run_dir": ""} if untouched else {}  # notebook 06 then has nothing to read
        check_filled_in(self.notebook, self.parameters.model_copy(update=changed))
        return self.parameters

    def note(self, *findings: Finding) -> None:
        """Add findings to the record; running a cell twice adds nothing twice."""
        self.findings += [finding for finding in findings if finding not in self.findings]

    def progress(self, items: Iterable[Item], what: str) -> Iterator[Item]:
        """``items``, with a bar on stderr: plain text, since a widget's bar is lost in a saved notebook."""
        yield from tqdm(items, what, file=sys.stderr, mininterval=0.5, ncols=100, ascii=True)

    def say(self, line: str) -> None:
        """A line about a finished point, on stderr beside the bar; pages leave it out."""
        tqdm.write(line, file=sys.stderr)

    def report_progress(self, share: float, words: str) -> None:
        """What long work is at, in one line that is written over, for functions that take a ``progress`` callback."""
        end = "\n" if share >= 1 else ""
        sys.stderr.write(f"\r{share:4.0%} {words[:90]:<90}{end}")
        sys.stderr.flush()

    @property
    def cache(self) -> Path:
        """Target states by content, shared by the runs beside this one; may be deleted at any time."""
        return self.run_dir.parent / ".states"

    def folder(self, name: str) -> Path:
        """An empty folder of this run; what an earlier run left there is removed."""
        path = self.run_dir / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def other(self, stem: str) -> dict[str, Any] | None:
        """The record that another notebook left in this run's folder, if there is a usable one."""
        try:
            return read_record(self.run_dir, stem)
        except InputError:
            return None

    def save_json(self, value: Any, name: str) -> Path:
        """Write ``<run_dir>/<name>.json``; returns the path."""
        path = self.run_dir / f"{name}.json"
        write_json(path, jsonable(value))
        return path

    def save_figure(self, figure: Any, name: str) -> Path:
        """Write a matplotlib figure as ``<run_dir>/<stem>.<name>.png``; returns the path."""
        if not re.fullmatch(r"[\w-]+", name):
            raise InputError("figure name", repr(name), "letters, digits, - and _")
        path = self.run_dir / f"{self.notebook}.{name}.png"
        figure.savefig(path, dpi=150, bbox_inches="tight")
        return path

    def finish(self, results: Mapping[str, Any], partial: str = "") -> None:
        """Write ``<run_dir>/<stem>.json`` atomically. ``partial``: why a part of the answer is missing."""
        record = {
            "schema": SCHEMA,
            "notebook": self.notebook,
            "status": "partial" if partial else "finished",
            "started": self.started,
            "finished": _now(),
            "parameters": self.parameters.model_dump(),
            "provenance": self.provenance,
            "findings": self.findings,
            "results": {**results, "reason": partial} if partial else results,
        }
        write_json(record_path(self.run_dir, self.notebook), mask(jsonable(record)))


def start(stem: str, namespace: Mapping[str, Any]) -> Run:
    """Begin the run of notebook ``stem`` with the parameters in ``namespace`` (the notebook's ``globals()``).

    A record left by an earlier run is removed first, so that a refused input cannot pass for a result.
    Raises ``InputError`` on an unknown or ill-typed parameter, also under plain papermill, which only
    logs it.
    """
    known = MODELS[stem].model_fields if stem in MODELS else {}
    given = {name: namespace[name] for name in known if name in namespace}
    run_dir = resolve_run_dir(given.get("run_dir"))
    if record_path(run_dir, stem).is_file():
        record_path(run_dir, stem).unlink()
    injected = injected_parameters(namespace.get("In", ()))
    parameters = validate(stem, {**injected, **given}).model_copy(update={"run_dir": str(run_dir)})
    _check_not_overwritten(injected, namespace)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError("run_dir", f"{run_dir.name}, which is or lies below a file", "a folder") from None
    return Run(stem, parameters, run_dir, _now(), provenance({"draft": parameters.draft, "target": parameters.target}))


def injected_parameters(history: Iterable[str]) -> dict[str, Any]:
    """What papermill injected, from IPython's input history: name -> value, ``...`` where it is no literal.

    papermill's cell begins with ``# Parameters``. Only names assigned in that cell count, so cells run or
    re-run by hand are never mistaken for parameters.
    """
    cells = [cell for cell in history if cell.startswith("# Parameters\n")]
    assigned: dict[str, Any] = {}
    for node in ast.parse(cells[-1]).body if cells else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                assigned[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:  # float("nan"): a call, checked with the other values
                assigned[node.targets[0].id] = ...
    return assigned


def _check_not_overwritten(injected: Mapping[str, Any], namespace: Mapping[str, Any]) -> None:
    """Without a cell tagged ``parameters`` papermill injects at the top, and the defaults win silently."""
    history = list(namespace.get("In", ()))
    if len(history) < 2 or not history[1].startswith("# Parameters\n"):
        return
    for name, value in injected.items():
        if value is not ... and namespace.get(name) != value:
            raise InputError(
                f"parameter {name}",
                f"{namespace.get(name)!r} though {value!r} was passed",
                "the value passed",
                "tag the notebook's parameters cell `parameters`, so that papermill injects after it",
            )


def resolve_run_dir(given: object) -> Path:
    """An absolute ``run_dir``; by default ``papermill_runs/by_hand`` of the project one works in."""
    if given and isinstance(given, (str, Path)):
        return Path(given).expanduser().absolute()
    here = Path.cwd()
    project = next((folder for folder in (here, *here.parents) if (folder / "papermill_runs").is_dir()), here)
    return project / "papermill_runs" / "by_hand"


def record_path(run_dir: str | Path, stem: str) -> Path:
    return Path(run_dir) / f"{stem}.json"


def read_record(run_dir: str | Path, stem: str) -> dict[str, Any]:
    """The record of notebook ``stem``; ``InputError`` when there is none or it cannot be trusted."""
    path = record_path(run_dir, stem)
    cure = f"run notebook {stem} with this run_dir"
    if not path.is_file():
        raise InputError(path, NO_RECORD, "the record of a finished or partial run", cure)
    try:
        record = parse_object(read_text(path), path)
    except InputError as error:
        raise InputError(path, error.found, error.expected, cure) from None
    for key, allowed in (("schema", (SCHEMA,)), ("notebook", (stem,)), ("status", ("finished", "partial"))):
        if record.get(key) not in allowed:
            raise InputError(f"{path}: {key}", repr(record.get(key)), " or ".join(map(repr, allowed)), cure)
    for key, kind, name in (("findings", list, "list"), ("results", dict, "object")):
        if not isinstance(record.setdefault(key, kind()), kind):
            raise InputError(f"{path}: {key}", repr(record[key]), f"a JSON {name}", cure)
    record["findings"] = [_checked_finding(path, finding) for finding in record["findings"]]
    return record


def _checked_finding(path: Path, finding: Any) -> dict[str, Any]:
    """A finding with all its texts, empty where a record of another making left one out."""
    if not isinstance(finding, dict) or not finding.get("kind") or finding.get("severity") not in SEVERITIES:
        raise InputError(f"{path}: findings", repr(finding)[:80], "findings with a kind and a severity")
    texts = dict.fromkeys(("kind", "subject", "evidence", "consequence", "remedy"), "")
    whole = {**texts, "edits": [], **{key: value for key, value in finding.items() if value is not None}}
    if unfit := [name for name in texts if not isinstance(whole[name], str)]:
        raise InputError(f"{path}: findings: {unfit[0]}", repr(whole[unfit[0]])[:80], "text")
    edits, names = whole["edits"], ("where", "key")
    if not isinstance(edits, list) or not all(
        isinstance(edit, dict) and all(isinstance(edit.get(name, ""), str) for name in names) for edit in edits
    ):
        raise InputError(f"{path}: findings: edits", repr(edits)[:80], "a list of objects")
    return whole


def read_records(run_dir: str | Path) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """All records of a run by stem, and for every stem without a usable one the reason."""
    records, reasons = {}, {}
    for stem in MODELS:
        if not record_path(run_dir, stem).is_file():
            reasons[stem] = NO_RECORD
            continue
        try:
            records[stem] = read_record(run_dir, stem)
        except InputError as error:
            reasons[stem] = str(error)
    return records, reasons


def write_json(path: Path, value: Any) -> None:
    """Strict JSON, complete or not there at all."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
