"""A plan file -> checked runs. Everything that can be known to be wrong is refused before anything starts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eagle3lib.errors import InputError
from eagle3lib.reporting.parameters import MODELS, nearest, path_names, validate

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .+=@-]*")
_PLACE = re.compile(r"\{(run_dir|out|name)\}")


@dataclass(frozen=True)
class PlannedRun:
    """One run: ``parameters`` as given, defaults included, before they are split over the notebooks."""

    name: str
    folder: Path
    stems: tuple[str, ...]
    parameters: Mapping[str, Any]
    cured_from: str = ""

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


@dataclass(frozen=True)
class Plan:
    path: Path
    out: Path
    runs: tuple[PlannedRun, ...]


def read_plan(path: Path) -> Plan:
    """Read and check a plan; ``InputError`` says in which run and at which key it is wrong."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise InputError(path, error.strerror or "an unreadable file", "a readable plan file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(path, " ".join(str(error).split()), "YAML") from None
    _keys(path, document, required=("out", "runs"), optional=("defaults",))
    if not isinstance(document["out"], str) or not document["out"].strip():
        raise InputError(f"{path}: out", repr(document["out"]), "a folder")
    out = Path(_absolute(document["out"]))
    defaults = _mapping(f"{path}: defaults", document.get("defaults"))
    _known(f"{path}: defaults", defaults, tuple(MODELS))
    if not isinstance(document["runs"], list) or not document["runs"]:
        raise InputError(f"{path}: runs", repr(document["runs"])[:80], "a list of at least one run")
    runs: dict[str, PlannedRun] = {}
    for place, entry in enumerate(document["runs"], start=1):
        run = _run(f"{path}: run {place}", entry, out, defaults, runs)
        runs[run.name] = run
    return Plan(path, out, tuple(runs.values()))


def _run(
    where: str, entry: Any, out: Path, defaults: Mapping[str, Any], earlier: Mapping[str, PlannedRun]
) -> PlannedRun:
    cured = isinstance(entry, dict) and "cured_from" in entry
    _keys(where, entry, ("name",) if cured else ("name", "notebooks"), ("parameters", "cured_from", "notebooks"))
    name = _name(where, entry["name"], earlier)
    where = f"{where} ({name})"
    source = _source(where, entry["cured_from"], earlier) if cured else None
    stems = _stems(f"{where}: notebooks", entry["notebooks"]) if "notebooks" in entry else source.stems
    own = _mapping(f"{where}: parameters", entry.get("parameters"))
    _known(f"{where}: parameters", own, stems)
    inherited = source.parameters if source else defaults
    run = PlannedRun(name, out / name, stems, {**inherited, **own}, source.name if source else "")
    for stem in stems:
        try:
            run.parameters_of(stem)
        except InputError as error:
            raise InputError(f"{where}: {error.where}", error.found, error.expected, error.cure) from None
    return run


def _name(where: str, given: Any, earlier: Mapping[str, PlannedRun]) -> str:
    name = str(given) if isinstance(given, (str, int)) and not isinstance(given, bool) else ""
    if not _NAME.fullmatch(name) or name.endswith((".", " ")):
        raise InputError(f"{where}: name", repr(given), "a folder name of letters, digits and _ - . + = @")
    if name.lower() in {"index.html", *(other.lower() for other in earlier)}:
        raise InputError(f"{where}: name", repr(name), "a name that nothing else in the plan's folder has")
    return name


def _source(where: str, given: Any, earlier: Mapping[str, PlannedRun]) -> PlannedRun:
    if given not in earlier:
        cure = nearest(str(given), list(earlier)) if earlier else "list that run first"
        raise InputError(f"{where}: cured_from", repr(given), "the name of an earlier run of this plan", cure)
    source = earlier[given]
    if "06_verdict" not in source.stems:
        raise InputError(f"{where}: cured_from", repr(given), "a run with notebook 06, whose remedies are applied")
    return source


def _stems(where: str, given: Any) -> tuple[str, ...]:
    """Stems in the order given, in which they run; YAML reads ``01`` as a number."""
    if not isinstance(given, list) or not given:
        raise InputError(where, repr(given), "a list of notebooks, such as [01, 02, 06]")
    stems = []
    for item in given:
        text = f"{item:02d}" if isinstance(item, int) and not isinstance(item, bool) else str(item)
        text = text.removesuffix(".ipynb")
        stem = next((stem for stem in MODELS if text in (stem, stem[:2], stem[1:2])), None)
        if stem is None:
            raise InputError(where, repr(item), "a notebook's number or stem", nearest(text, list(MODELS)))
        if stem in stems:
            raise InputError(where, f"{stem} twice", "each notebook once")
        stems.append(stem)
    return tuple(stems)


def _known(where: str, given: Mapping[str, Any], stems: tuple[str, ...]) -> None:
    """Every name is a parameter of at least one of ``stems``; each notebook gets those that it knows."""
    known = list(dict.fromkeys(name for stem in stems for name in MODELS[stem].model_fields))
    for name in given:
        if name == "run_dir":
            raise InputError(f"{where}: run_dir", repr(given[name]), "no such key", "the batch sets it: <out>/<name>")
        if name not in known:
            expected = "a parameter of one of " + ", ".join(stems)
            raise InputError(f"{where}: {name}", "an unknown name", expected, nearest(str(name), known))


def _keys(where: object, given: Any, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    known = list(dict.fromkeys(required + optional))
    if not isinstance(given, dict):
        raise InputError(where, repr(given)[:80], "a mapping with " + ", ".join(required))
    for key in given:
        if key not in known:
            expected = "one of " + ", ".join(known)
            raise InputError(f"{where}: {key}", "an unknown key", expected, nearest(str(key), known))
    for key in required:
        if key not in given:
            raise InputError(where, f"no {key}", "the keys " + ", ".join(required))


def _mapping(where: str, given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InputError(where, repr(given)[:80], "a mapping of parameter names to values")
    return given


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
