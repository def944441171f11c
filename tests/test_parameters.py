"""Notebook parameters: the cells say what the models say, papermill reads them, and bad values are told."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path
from typing import Any, get_args

import nbformat
import papermill
import pytest

from eagle3lib.errors import InputError
from eagle3lib.maths.device import DTYPES
from eagle3lib.reporting.parameters import MODELS, render_parameters_cell, validate

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SHARED = {"run_dir", "draft", "target", "engine", "launch", "show_text"}
OWN = {
    "01_config_inspection": {"longest_prompt"},
    "02_manual_forward": {
        "samples", "depths", "max_samples", "device", "dtype", "training_report", "search_wiring",
    },
    "03_acceptance": {
        "samples", "engine_reports", "training_report", "num_steps", "topk", "num_draft_tokens",
        "temperature", "device", "dtype",
    },
    "04_capture_diff": {
        "capture", "server_url", "prompts", "reference", "trained_boundaries", "max_new_tokens", "device", "dtype",
    },
    "05_throughput_sweep": {"grid", "concurrency", "prompts", "points"},
    "06_verdict": set(),
}  # fmt: skip


@pytest.mark.parametrize("stem", MODELS)
def test_notebook_cell_is_rendered_from_the_model(stem: str) -> None:
    cells = json.loads((NOTEBOOKS / f"{stem}.ipynb").read_text())["cells"]
    (cell,) = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", ())]
    source = "".join(cell["source"])
    assert source == render_parameters_cell(MODELS[stem])
    assert "\\" not in source, "an escape code is nothing that a person should have to read"


@pytest.mark.parametrize("stem", MODELS)
def test_every_parameter_of_the_contract_is_there_as_a_literal(stem: str) -> None:
    lines = ast.parse(render_parameters_cell(MODELS[stem])).body
    found = {line.target.id: ast.literal_eval(line.value) for line in lines}
    assert found.keys() >= SHARED | OWN[stem]
    assert found == MODELS[stem]().model_dump() == validate(stem, found).model_dump()
    assert found["engine"] == "sglang 0.5.23" and found["show_text"] is False


@pytest.mark.parametrize("stem", MODELS)
def test_papermill_reads_every_line(stem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A second equals sign in a line makes papermill lose the parameter (nteract/papermill 864)."""
    cell = nbformat.v4.new_code_cell(render_parameters_cell(MODELS[stem]), metadata={"tags": ["parameters"]})
    metadata = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=metadata), tmp_path / "nb.ipynb")
    with caplog.at_level(logging.WARNING):
        read = papermill.inspect_notebook(str(tmp_path / "nb.ipynb"))
    assert list(read) == list(MODELS[stem].model_fields) and not caplog.records
    assert all(entry["help"] for entry in read.values())


def test_dtypes_are_those_that_can_be_computed_in() -> None:
    field = MODELS["02_manual_forward"].model_fields["dtype"]
    assert set(get_args(field.annotation)) == {"auto", *DTYPES}


ACCEPTED: list[tuple[str, str, Any, Any]] = [
    ("05_throughput_sweep", "grid", "[[0, 0, 0], [5, 1, 6]]", [[0, 0, 0], [5, 1, 6]]),
    ("05_throughput_sweep", "concurrency", (1, 8), [1, 8]),
    ("04_capture_diff", "trained_boundaries", "[0, 3, 16]", [0, 3, 16]),
    ("03_acceptance", "temperature", "1e-5", 1e-5),  # what YAML makes of 1e-5
    ("03_acceptance", "temperature", 1, 1.0),
    ("02_manual_forward", "depths", "4", 4),
    ("02_manual_forward", "search_wiring", "false", False),
    ("02_manual_forward", "training_report", {"values": [0.6]}, '{"values": [0.6]}'),
    ("02_manual_forward", "training_report", 0.61, "0.61"),
    ("02_manual_forward", "samples", Path("some") / "folder", "some/folder"),
    ("02_manual_forward", "samples", None, ""),
    ("02_manual_forward", "draft", 7, "7"),  # a folder called 7, through papermill's -p
]


@pytest.mark.parametrize(("stem", "name", "given", "meant"), ACCEPTED)
def test_values_as_papermill_and_yaml_pass_them(stem: str, name: str, given: Any, meant: Any) -> None:
    value = getattr(validate(stem, {name: given}), name)
    assert value == meant and type(value) is type(meant)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("02_manual_forward", {"max_sample": 5}, "max_samples"),
    ("01_config_inspection", {"samples": "x"}, "one of run_dir"),
    ("02_manual_forward", {"depths": 0}, "greater than or equal to 1"),
    ("02_manual_forward", {"depths": True}, "not true or false"),
    ("02_manual_forward", {"depths": 2.5}, "int"),
    ("02_manual_forward", {"dtype": "int8"}, "bfloat16"),
    ("04_capture_diff", {"dtype": "float64"}, "bfloat16"),
    ("02_manual_forward", {"draft": ["a"]}, "str"),
    ("01_config_inspection", {"show_text": "perhaps"}, "bool"),
    ("03_acceptance", {"temperature": float("nan")}, "finite"),
    ("03_acceptance", {"temperature": -1}, "greater than or equal to 0"),
    ("04_capture_diff", {"trained_boundaries": "[0, 3"}, "JSON"),
    ("04_capture_diff", {"trained_boundaries": [0, -1]}, "trained_boundaries[1]"),
    ("05_throughput_sweep", {"grid": [[3, 1]]}, "grid[0]"),
    ("05_throughput_sweep", {"grid": []}, "at least 1"),
    ("07_other", {}, "06_verdict"),
]


@pytest.mark.parametrize(("stem", "given", "told"), REFUSED)
def test_refusals_name_what_was_expected(stem: str, given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        validate(stem, given)
    assert told in str(refused.value)
