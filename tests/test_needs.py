"""A notebook opened fresh says what to fill in, in a few lines, and stops: tried in real kernels."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from eagle3lib.reporting.parameters import MODELS, NotFilledIn, check_filled_in, demo_lines, validate
from eagle3lib.reporting.records import start

ROOT = Path(__file__).resolve().parents[1]


def ran(stem: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *pasted: str) -> tuple[list[str], str]:
    """The lines that the one failing cell shows, and the exception's own words."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    notebook = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
    notebook.cells[1].source += "\n" + "\n".join(pasted)
    with pytest.raises(CellExecutionError):  # so that papermill and nbconvert end with another code than 0
        NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    (error,) = [output for output in outputs if output.output_type == "error"]
    return "\n".join(error.traceback).splitlines(), f"{error.ename}: {error.evalue}"


@pytest.mark.parametrize("stem", MODELS)
def test_a_fresh_notebook_says_what_to_fill_in(stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, words = ran(stem, tmp_path, monkeypatch)
    assert lines[0].startswith("Fill in the first cell") and lines[1] == words.removeprefix("NotFilledIn: ")
    assert len(lines) <= 8 and not any("eagle3lib/" in line or "---->" in line for line in lines)
    values: dict[str, str] = {}
    exec("\n".join(lines[3:]), values)  # what is to be pasted is Python
    check_filled_in(stem, validate(stem, {name: values[name] for name in MODELS[stem].demo}))
    assert not list(tmp_path.rglob("*.json")), "no record"


def test_a_wrong_path_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, words = ran("01_config_inspection", tmp_path, monkeypatch, "draft = 'nowhere'")
    assert lines == [words] and "nowhere" in words and words.startswith("InputError: ")


def test_one_way_of_several_is_enough_and_own_files_get_no_values_of_the_demo() -> None:
    for given in ({"points": "p"}, {"prompts": "p", "launch": "--tp 1"}):
        check_filled_in("05_throughput_sweep", validate("05_throughput_sweep", given))
    with pytest.raises(NotFilledIn) as refused:
        check_filled_in("02_manual_forward", validate("02_manual_forward", {"draft": "mine"}))
    assert "found target and samples empty" in str(refused.value) and refused.value.lines == ()


def test_the_verdict_wants_a_folder_only_where_nothing_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "papermill_runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFilledIn, match="run_dir"):
        start("06_verdict", {}).filled_in()
    assert start("06_verdict", {"run_dir": str(tmp_path / "given")}).filled_in()
    start("01_config_inspection", {}).finish({})
    assert start("06_verdict", {}).filled_in()


def test_the_demo_beside_the_library_is_the_one_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert demo_lines("02_manual_forward")[0] == f'draft = "{ROOT}/data/demo/draft"'
    assert f"--speculative-draft-model-path {ROOT}/data/demo/draft" in demo_lines("04_capture_diff")[2]
    monkeypatch.setattr("eagle3lib.reporting.parameters.ROOT", tmp_path)  # installed without its checkout
    assert demo_lines("02_manual_forward") == []
