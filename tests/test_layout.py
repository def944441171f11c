"""The architecture as a test: data flows one way, and each room keeps to its own tools."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[1] / "eagle3lib"
#: A room imports from those before it.
ROOMS = ("reading", "maths", "trainers", "measuring", "engine", "findings", "reporting", "batch")
#: Who alone may import what.
TOOLS = {"sglang": "engine", "matplotlib": "reporting", "ipywidgets": "reporting", "papermill": "batch",
         "nbconvert": "reporting", "IPython": "reporting"}  # fmt: skip
FILES = sorted(path for path in LIBRARY.rglob("*.py") if "__pycache__" not in path.parts)


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}.{node.names[0].name}"


def room(path: Path) -> str:
    return path.relative_to(LIBRARY).parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LIBRARY)))
def test_a_file_keeps_to_its_room(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        top, *rest = name.split(".")
        assert TOOLS.get(top, here) == here, f"{name} belongs in {TOOLS[top]}/"
        if top == "eagle3lib" and rest[0] in ROOMS and here in ROOMS:
            assert ROOMS.index(rest[0]) <= ROOMS.index(here), f"{here}/ must not import {name}"
    assert len(path.read_text().splitlines()) <= 400, "one idea a file"


def test_every_file_stands_in_the_architecture() -> None:
    told = set(re.findall(r"\w+", (LIBRARY.parent / "docs" / "architecture.md").read_text()))
    assert {path.stem for path in FILES if not path.stem.startswith(("__", "rules_"))} <= told
