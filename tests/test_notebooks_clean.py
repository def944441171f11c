"""Notebooks are committed without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def leftovers(folder: Path) -> list[str]:
    """Each code cell under ``folder`` that has outputs or an execution count, and each saved widget state."""
    found = []
    for path in sorted(folder.rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        notebook = nbformat.read(path, as_version=4)
        if "widgets" in notebook.metadata:
            found.append(f"{path.name}: widget state")
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None):
                found.append(f"{path.name}: cell {number}")
    return found


def test_notebooks_hold_no_outputs():
    assert leftovers(NOTEBOOKS) == [], "strip them: .venv/bin/nbstripout notebooks/*.ipynb"


def test_no_notebook_is_clean(tmp_path):
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("cells", "metadata", "found"),
    [
        ([new_markdown_cell("# A"), new_code_cell("1")], {}, []),
        ([new_code_cell("1", outputs=[new_output("stream", text="1")])], {}, ["a.ipynb: cell 0"]),
        ([new_markdown_cell("# A"), new_code_cell("1", execution_count=3)], {}, ["a.ipynb: cell 1"]),
        ([new_code_cell("1")], {"widgets": {"state": {}}}, ["a.ipynb: widget state"]),
    ],
)
def test_outputs_are_found(tmp_path, cells, metadata, found):
    (tmp_path / "deep").mkdir()
    nbformat.write(new_notebook(cells=cells, metadata=metadata), tmp_path / "deep" / "a.ipynb")
    assert leftovers(tmp_path) == found
