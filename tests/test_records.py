"""A run's record: strict, atomic, the last act, and absent whenever the run is no result."""

from __future__ import annotations

import ast
import getpass
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lib.errors import InputError
from eagle3lib.findings.finding import Edit, Finding
from eagle3lib.reporting.parameters import MODELS, render_parameters_cell
from eagle3lib.reporting.records import jsonable, read_record, read_records, start

STEM = "02_manual_forward"


def notebook(run_dir: Path, injected: str = "", first: bool = False, **values: Any) -> dict[str, Any]:
    """The globals of a kernel that ran the parameters cell and, after it (or ``first``), papermill's."""
    cell = render_parameters_cell(MODELS[STEM])
    names = {line.target.id: ast.literal_eval(line.value) for line in ast.parse(cell).body}
    cells = [injected, cell] if first else [cell, injected]
    return {**names, "run_dir": str(run_dir), **values, "In": ["", *filter(None, cells)], "unrelated": 1}


@dataclass(frozen=True)
class Share:
    numerator: int
    denominator: int

    def to_json(self) -> dict[str, Any]:
        return {"value": self.numerator / self.denominator, "ci": (float("nan"), np.float64(1))}


def test_a_record_is_strict_json_with_everything_in_it(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text("{}")
    run = start(STEM, notebook(tmp_path / "run", draft=str(draft), launch="serve --api-key abc --tp 1"))
    finding = Finding("aux.layers", "error", "s", "e", "c", "r", (Edit("launch", "--tp", None),))
    run.add_findings(finding)
    run.add_findings(finding)  # the cell run again
    path = run.run_dir / f"{STEM}.json"
    assert not path.exists(), "the record is the last act"
    run.finish({
        "share": Share(1, 2), "inf": np.float32(np.inf), "counts": np.arange(3), "flag": np.bool_(True),
        "path": Path("a") / "b", "pair": (1, None), "by_steps": {3: 1.5}, "set": {2, 1},
    })  # fmt: skip
    assert [child.name for child in run.run_dir.iterdir()] == [path.name]
    record = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert record == read_record(run.run_dir, STEM)
    assert list(record) == ["schema", "notebook", "status", "started", "finished", "parameters", "provenance",
                            "findings", "results"]  # fmt: skip
    assert record["results"] == {
        "share": {"value": 0.5, "ci": [None, 1.0]}, "inf": None, "counts": [0, 1, 2], "flag": True,
        "path": "a/b", "pair": [1, None], "by_steps": {"3": 1.5}, "set": [1, 2],
    }  # fmt: skip
    assert record["status"] == "finished" and len(record["findings"]) == 1
    assert record["findings"][0]["edits"] == [{"where": "launch", "key": "--tp", "value": None}]
    assert record["parameters"]["launch"] == "serve --api-key *** --tp 1"
    assert record["provenance"]["files"].keys() == {"draft/config.json"}
    text = path.read_text()
    assert platform.node() not in text and f'"{getpass.getuser()}"' not in text and str(Path.home()) + "/" not in text


def test_a_torch_number_is_a_number() -> None:
    torch = pytest.importorskip("torch")
    assert jsonable({"x": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16)}) == {"x": [1.5, None]}
    with pytest.raises(ValueError):
        jsonable({"x": object()})


@given(st.recursive(st.floats() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_numbers_make_strict_json(value: Any) -> None:
    plain = jsonable(value)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_partial_says_why(tmp_path: Path) -> None:
    start(STEM, notebook(tmp_path)).finish({"depths": []}, partial="no samples given")
    record = read_record(tmp_path, STEM)
    assert record["status"] == "partial" and record["results"] == {"depths": [], "reason": "no samples given"}


def test_what_papermill_only_warns_about_is_refused(tmp_path: Path) -> None:
    """Plain papermill logs an unknown parameter and goes on; its injected cell tells us."""
    start(STEM, notebook(tmp_path)).finish({})
    with pytest.raises(InputError, match="max_samples"):
        start(STEM, notebook(tmp_path, "# Parameters\nmax_sample = 5\nmax_samples = 5\n"))
    assert not (tmp_path / f"{STEM}.json").exists(), "an older record must not pass for this run's result"
    run = start(STEM, notebook(tmp_path, "# Parameters\nmax_samples = 5\n", max_samples=5))
    assert run.parameters.max_samples == 5
    by_hand = notebook(tmp_path, "bogus = 5\n# Parameters\n")  # a cell of the user's own
    assert start(STEM, by_hand).parameters.max_samples == 0


def test_an_untagged_parameters_cell_is_found_out(tmp_path: Path) -> None:
    """nteract/papermill 245: injected at the top, overwritten by the defaults, and nobody is told."""
    with pytest.raises(InputError, match="tag the notebook's parameters cell"):
        start(STEM, notebook(tmp_path, "# Parameters\nmax_samples = 5\n", first=True))


def test_ill_typed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="depths"):
        start(STEM, notebook(tmp_path / "new", depths="many"))
    assert not (tmp_path / "new").exists()


def test_a_failing_finish_leaves_no_record(tmp_path: Path) -> None:
    run = start(STEM, notebook(tmp_path))
    with pytest.raises(ValueError):
        run.finish({"x": object()})
    assert not list(tmp_path.iterdir())


def test_the_default_folder_is_the_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "papermill_runs").mkdir()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")  # where JupyterLab runs a notebook
    assert start(STEM, notebook(tmp_path) | {"run_dir": ""}).run_dir == tmp_path / "papermill_runs" / "by_hand"


BROKEN = {
    "": "strict JSON", "[]": "JSON object", '{"schema": 1, "notebook": "02_manual_forward"': "strict JSON",
    '{"schema": 2}': "schema", '{"schema": 1, "notebook": "03_acceptance"}': "notebook",
    '{"schema": 1, "notebook": "02_manual_forward", "status": "running"}': "status",
    '{"schema": 1, "notebook": "02_manual_forward", "status": "finished", "results": {"x": NaN}}': "NaN",
    '{"schema": 1, "notebook": "02_manual_forward", "status": "finished", "results": []}': "results",
    '{"schema": 1, "notebook": "02_manual_forward", "status": "partial", "findings": [{}]}': "kind",
    **{
        f'{{"schema": 1, "notebook": "02_manual_forward", "status": "partial", "findings": [{{{finding}}}]}}': words
        for finding, words in {
            '"kind": 7, "severity": "error"': "kind", '"kind": ["a"], "severity": "note"': "kind",
            '"kind": "a", "severity": "error", "edits": "abc"': "edits",
            '"kind": "a", "severity": "error", "edits": ["abc"]': "edits",
            '"kind": "a", "severity": "error", "edits": [{"where": ["a"], "key": "b"}]': "edits",
            '"kind": "a", "severity": "error", "edits": [{"where": "launch", "key": 5}]': "edits",
            '"kind": "a", "severity": "error", "evidence": {}': "evidence",
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_record_is_told_not_guessed(text: str, tmp_path: Path) -> None:
    (tmp_path / f"{STEM}.json").write_text(text)
    records, reasons = read_records(tmp_path)
    assert not records and BROKEN[text] in reasons[STEM]
    assert "no record" in reasons["01_config_inspection"]


def test_progress_is_plain_text_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = start(STEM, notebook(tmp_path))
    assert list(run.progress([1, 2], "samples")) == [1, 2]
    run.log("point done")
    out, err = capsys.readouterr()
    assert not out and "samples: 100%" in err and "point done\n" in err


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_run_folder_that_is_a_file_is_told(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("not ours")
    with pytest.raises(InputError, match="run_dir"):
        start(STEM, notebook(tmp_path / "taken" / below))
    assert (tmp_path / "taken").read_text() == "not ours"


def test_a_figure_stays_in_the_run_folder(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    run = start(STEM, notebook(tmp_path))
    run.show("depths", figure, "what it means")
    assert (tmp_path / f"{STEM}.depths.png").is_file()
    with pytest.raises(InputError):
        run.show("../depths", figure)


def test_importing_is_light() -> None:
    import subprocess

    heavy = "('torch', 'matplotlib', 'sglang')"
    code = f"import sys, eagle3lib.reporting.records; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
