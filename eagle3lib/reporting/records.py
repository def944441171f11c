"""A notebook's run: checked parameters in, one record out as the last act.

    run = start("02_manual_forward", globals())   # after the parameters and the imports
    p = run.filled_in()                           # the parameters, or what is to be filled in
    run.add_findings(finding)
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
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from tqdm import tqdm

from eagle3lib.errors import InputError
from eagle3lib.findings.finding import Finding, Severity
from eagle3lib.findings.verdict import NO_RECORD
from eagle3lib.reading.files import parse_object, read_text, write_text
from eagle3lib.reporting.parameters import MODELS, Parameters, check_filled_in, input_error, validate
from eagle3lib.reporting.privacy import mask
from eagle3lib.reporting.provenance import provenance

SCHEMA = 1
_JSON = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="null"))
Item = TypeVar("Item")
#: A record of another making may leave these out, or null.
OptionalText = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
OptionalList = Annotated[list[dict[str, Any]], BeforeValidator(lambda value: [] if value is None else value)]


class RecordedFinding(BaseModel):
    """``findings.finding.Finding`` as JSON."""

    model_config = ConfigDict(extra="allow")
    kind: str = Field(min_length=1)
    severity: Severity
    subject: OptionalText = ""
    evidence: OptionalText = ""
    consequence: OptionalText = ""
    remedy: OptionalText = ""
    edits: OptionalList = []

    @field_validator("edits")
    @classmethod
    def _places_are_text(cls, edits: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not all(isinstance(edit.get(name, ""), str) for edit in edits for name in ("where", "key")):
            raise ValueError("where and key as text")
        return edits


class Record(BaseModel):
    """What a reader may rely on in ``<run_dir>/<stem>.json``; further keys are kept as they are."""

    model_config = ConfigDict(extra="allow")
    schema_: Literal[1] = Field(alias="schema")
    notebook: str
    status: Literal["finished", "partial"]
    findings: list[RecordedFinding] = []
    results: dict[str, Any] = {}


@dataclass
class Run:
    """One notebook at work. ``findings`` grow; everything else is fixed at the start."""

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

    def add_findings(self, *findings: Finding) -> None:
        """Put findings into the record; running a cell twice adds nothing twice."""
        self.findings += [finding for finding in findings if finding not in self.findings]

    def progress(self, items: Iterable[Item], what: str) -> Iterator[Item]:
        """``items``, with a bar on stderr: plain text, since a widget's bar is lost in a saved notebook."""
        yield from tqdm(items, what, file=sys.stderr, mininterval=0.5, ncols=100, ascii=True)

    def log(self, line: str) -> None:
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

    def show(self, name: str, figure: Any, words: str = "") -> None:
        """Show a matplotlib figure, kept as ``<run_dir>/<stem>.<name>.png``, and below it what it means.

        ``figure`` is ``None`` where nothing can be drawn; ``words`` then say why.
        """
        from IPython.display import Pretty, display

        if not re.fullmatch(r"[\w-]+", name):
            raise InputError("figure name", repr(name), "letters, digits, - and _")
        if figure is not None:
            figure.savefig(self.run_dir / f"{self.notebook}.{name}.png", dpi=150, bbox_inches="tight")
            display(figure)
        if words:
            display(Pretty(mask(words)))

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
        record = Record.model_validate(parse_object(read_text(path), path))
    except ValidationError as error:
        refused = input_error(error, f"{path}: ")
        raise InputError(refused.where, refused.found, refused.expected, cure) from None
    except InputError as error:
        raise InputError(path, error.found, error.expected, cure) from None
    if record.notebook != stem:
        raise InputError(f"{path}: notebook", repr(record.notebook), repr(stem), cure)
    return record.model_dump(by_alias=True)


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


def jsonable(value: Any) -> Any:
    """``value`` in JSON's own types; NaN and infinities become null. An object with ``to_json()`` decides for itself.

    Raises ``PydanticSerializationError`` for what has no plain form: a record never holds the text of a Python object.
    """
    if hasattr(value, "to_json"):
        return jsonable(value.to_json())
    if is_dataclass(value):
        return {each.name: jsonable(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(jsonable(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    array = hasattr(value, "tolist")  # numpy's and torch's arrays and scalars
    return jsonable(value.tolist()) if array else _JSON.dump_python(value, mode="json")


def write_json(path: Path, value: Any) -> None:
    """Strict JSON, complete or not there at all."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
