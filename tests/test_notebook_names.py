"""Cells run again in JupyterLab: none overwrites a parameter, one holds all imports, none defines anything."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

from eagle3lib.reporting.parameters import MODELS

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


@pytest.mark.parametrize("stem", MODELS)
def test_no_cell_overwrites_a_parameter(stem: str) -> None:
    cells = [c for c in nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4).cells if c.cell_type == "code"]
    for cell in cells:
        if "parameters" in cell.metadata.get("tags", ()):
            continue
        bound = {node.id for node in ast.walk(ast.parse(cell.source)) if _binds(node)}
        bound |= {
            (alias.asname or alias.name).split(".")[0]
            for node in ast.walk(ast.parse(cell.source))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        assert not bound & set(MODELS[stem].model_fields), cell.source


@pytest.mark.parametrize("stem", MODELS)
def test_imports_stand_in_the_cell_after_the_parameters(stem: str) -> None:
    cells = [c for c in nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4).cells if c.cell_type == "code"]
    parameters, imports, *rest = (ast.parse(cell.source) for cell in cells)
    assert all(isinstance(line, (ast.Import, ast.ImportFrom)) for line in imports.body)
    for node in (found for cell in (parameters, *rest) for found in ast.walk(cell)):
        assert not isinstance(node, (ast.Import, ast.ImportFrom)), "imports stand in one cell"
        assert not isinstance(node, (ast.FunctionDef, ast.ClassDef)), "what is defined stands in the library"


def _binds(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
