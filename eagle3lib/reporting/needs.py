"""What a notebook cannot do without, and the demo's values for it: what a notebook opened fresh says and then stops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eagle3lib.errors import InputError
from eagle3lib.reporting.parameters import MODELS, Parameters, model_of, path_names

ROOT = Path(__file__).resolve().parents[2]


class NotFilledIn(InputError):
    """A notebook without what it needs. Headless one sentence; in JupyterLab also ``lines`` to paste."""

    def __init__(self, stem: str, empty: Sequence[str], needs: str, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        found = f"{_listed(empty)} empty"
        super().__init__(f"parameters of {stem}", found, needs, "fill in the notebook's first cell")

    def _render_traceback_(self) -> list[str]:
        demo = ("The demo's values, to be put at the end of that cell:", *self.lines) if self.lines else ()
        return ["Fill in the first cell, then run from the top.", str(self), *demo]


def check_filled_in(stem: str, parameters: Parameters) -> None:
    """Raises ``NotFilledIn`` unless one of the sets of parameters that ``stem`` can work with is given whole."""
    model = model_of(stem)
    ways = [names.split() for names in model.needs]
    needed = [name for name in model.model_fields if any(name in names for names in ways)]
    empty = [name for name in needed if not getattr(parameters, name)]
    if not any(set(names).isdisjoint(empty) for names in ways):
        # Beside somebody's own files those of the demo would fit nothing.
        lines = demo_lines(stem) if empty == needed else ()
        raise NotFilledIn(stem, empty, ", or ".join(map(_listed, ways)), lines)


def demo_lines(stem: str) -> list[str]:
    """``name = value`` for what the demo gives notebook ``stem``; none where the demo is not beside us."""
    import yaml

    try:
        plan = yaml.safe_load((ROOT / "data" / "demo" / "plan.yaml").read_text(encoding="utf-8"))
    except OSError:
        return []
    model, first = MODELS[stem], plan["runs"][0]
    values = plan["defaults"] | first["parameters"] | {"run_dir": f"{plan['out']}/{first['name']}"}
    values |= {name: str(ROOT / values[name]) for name in path_names(model) if name in values}
    for folder in (".cache", "data"):  # a notebook's own folder is where its relative paths start
        values["launch"] = values["launch"].replace(f" {folder}/", f" {ROOT}/{folder}/")
    lines = [f"{name} = {json.dumps(values[name])}" for name in model.demo]
    missing = [name for name in path_names(model) if name in model.demo and not Path(values[name]).exists()]
    return [*lines, f"# `make demo` makes {_listed(missing)}"] if missing else lines


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
