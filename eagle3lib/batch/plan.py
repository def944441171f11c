"""A plan file -> checked runs. Everything that can be known to be wrong is refused before anything starts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from eagle3lib.errors import InputError
from eagle3lib.reporting.parameters import MODELS, input_error, nearest, path_names, validate

_PLACE = re.compile(r"\{(run_dir|out|name)\}")
_FOLDER_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_ .+=@-]*[A-Za-z0-9_+=@-])?")


def _out(given: Any) -> Path:
    if not isinstance(given, str) or not given.strip():
        raise InputError("out", repr(given), "a folder")
    return Path(_absolute(given))


def _name(given: Any) -> str:
    name = _text(given)
    if not isinstance(name, str) or not _FOLDER_NAME.fullmatch(name):
        raise InputError("name", repr(given), "a folder name of letters, digits and _ - . + = @")
    return name


def _text(value: Any) -> Any:
    """YAML reads a name such as ``2024`` as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _stems(given: Any) -> Any:
    """Stems in the order given, in which they run; YAML reads ``01`` as a number."""
    if not isinstance(given, list) or not given:
        raise InputError("notebooks", repr(given), "a list of notebooks, such as [01, 02, 06]")
    stems: list[str] = []
    for item in given:
        name = f"{item:02d}" if isinstance(item, int) and not isinstance(item, bool) else str(item)
        name = name.removesuffix(".ipynb")
        stem = next((stem for stem in MODELS if name in (stem, stem[:2], stem[1:2])), None)
        if stem is None:
            raise InputError("notebooks", repr(item), "a notebook's number or stem", nearest(name, MODELS))
        if stem in stems:
            raise InputError("notebooks", f"{stem} twice", "each notebook once")
        stems.append(stem)
    return stems


ParameterValues = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]


class PlannedRun(BaseModel):
    """One run. Once its plan is read, ``parameters`` hold what it inherits, not yet split over the notebooks."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, BeforeValidator(_name)]
    stems: Annotated[tuple[str, ...], BeforeValidator(_stems)] = Field((), alias="notebooks")
    parameters: ParameterValues = {}
    cured_from: Annotated[str, BeforeValidator(_text)] = ""
    _folder: Path = Path()

    @property
    def folder(self) -> Path:
        return self._folder

    def parameters_of(self, stem: str, changed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What notebook ``stem`` is given: checked, placeholders filled, paths absolute. Values are plain."""
        model = MODELS[stem]
        places = {"run_dir": str(self.folder), "out": str(self.folder.parent), "name": self.name}
        given = {
            name: _filled(value, places)
            for name, value in {**self.parameters, **(changed or {})}.items()
            if name in model.model_fields
        }
        given |= {name: _absolute(given[name]) for name in path_names(model) if name in given}
        return validate(stem, {**given, "run_dir": str(self.folder)}).model_dump()


class Plan(BaseModel):
    """A plan file: ``out/<run name>/`` is each run's folder."""

    model_config = ConfigDict(extra="forbid")
    out: Annotated[Path, BeforeValidator(_out)]
    defaults: ParameterValues = {}
    runs: list[PlannedRun] = Field(min_length=1)

    @model_validator(mode="after")
    def _complete(self) -> Plan:
        """Give every run its folder and what it inherits: the defaults, or all of the run that it is cured from."""
        _check_names("defaults", self.defaults, MODELS)
        earlier: dict[str, PlannedRun] = {}
        for place, run in enumerate(self.runs, start=1):
            where = f"run {place} ({run.name})"
            if run.name.lower() in {"index.html", *map(str.lower, earlier)}:
                raise InputError(f"{where}: name", repr(run.name), "a name that nothing else in the plan's folder has")
            source = _source(where, run.cured_from, earlier) if "cured_from" in run.model_fields_set else None
            run.stems = run.stems or (source.stems if source else ())
            if not run.stems:
                raise InputError(where, "no notebooks", "a list of notebooks, such as [01, 02, 06]")
            _check_names(f"{where}: parameters", run.parameters, run.stems)
            run.parameters = {**(source.parameters if source else self.defaults), **run.parameters}
            run._folder = self.out / run.name
            for stem in run.stems:
                try:
                    run.parameters_of(stem)
                except InputError as error:
                    raise InputError(f"{where}: {error.where}", error.found, error.expected, error.cure) from None
            earlier[run.name] = run
        return self


def read_plan(path: Path) -> Plan:
    """Read and check a plan; ``InputError`` says in which run and at which key it is wrong."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise InputError(path, error.strerror or "an unreadable file", "a readable plan file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(path, " ".join(str(error).split()), "YAML") from None
    try:
        return Plan.model_validate(document)
    except ValidationError as error:
        known = ("out", "defaults", "runs", "name", "notebooks", "parameters", "cured_from")
        raise input_error(error, f"{path}: ", known) from None


def _source(where: str, name: str, earlier: Mapping[str, PlannedRun]) -> PlannedRun:
    if name not in earlier:
        cure = nearest(name, earlier) if earlier else "list that run first"
        raise InputError(f"{where}: cured_from", repr(name), "the name of an earlier run of this plan", cure)
    if "06_verdict" not in earlier[name].stems:
        raise InputError(f"{where}: cured_from", repr(name), "a run with notebook 06, whose remedies are applied")
    return earlier[name]


def _check_names(where: str, given: Mapping[str, Any], stems: Iterable[str]) -> None:
    """Every name is a parameter of at least one of ``stems``; each notebook gets those that it knows."""
    known = dict.fromkeys(name for stem in stems for name in MODELS[stem].model_fields)
    for name in given:
        if name == "run_dir":
            raise InputError(f"{where}: run_dir", repr(given[name]), "no such key", "the batch sets it: <out>/<name>")
        if name not in known:
            expected = "a parameter of one of " + ", ".join(stems)
            raise InputError(f"{where}: {name}", "an unknown name", expected, nearest(str(name), known))


def _filled(value: Any, places: Mapping[str, str]) -> Any:
    """``{run_dir}``, ``{out}`` and ``{name}`` replaced in strings at any depth; other braces stay."""
    if isinstance(value, str):
        return _PLACE.sub(lambda match: places[match[1]], value)
    if isinstance(value, list):
        return [_filled(item, places) for item in value]
    return {key: _filled(item, places) for key, item in value.items()} if isinstance(value, dict) else value


def _absolute(value: Any) -> Any:
    """A path against the folder the command runs in; a kernel may start elsewhere. JSON text is no path."""
    if not isinstance(value, str) or not value.strip() or value.lstrip()[0] in "{[":
        return value
    return os.path.abspath(os.path.expanduser(value))


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, of which plain YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} stands twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def check_notebooks(plan: Plan, folder: Path) -> None:
    """Every notebook of the plan is there, with a cell tagged ``parameters`` to inject after."""
    for stem in sorted({stem for run in plan.runs for stem in run.stems}):
        path = folder / f"{stem}.ipynb"
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            tags = [tag for cell in cells for tag in cell.get("metadata", {}).get("tags", ())]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(path, f"unreadable ({error})", "a notebook", "name its folder with --notebooks") from None
        if "parameters" not in tags:
            raise InputError(path, "no cell tagged parameters", "one, else its defaults win over every value passed")
