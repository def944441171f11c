"""Batches, run by the real command line, papermill and kernels, on notebooks of three cells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
import yaml

from eagle3lib.batch.plan import PlannedRun, read_plan
from eagle3lib.batch.runner import Batch
from eagle3lib.errors import InputError
from eagle3lib.reporting.index import Outcome
from eagle3lib.reporting.parameters import MODELS, render_parameters_cell
from eagle3lib.reporting.records import start

ROOT = Path(__file__).parents[1]
VERDICT = """
edits = [{"where": "draft config", "key": "eagle_config.layers", "value": [0, 3, 16]},
         {"where": "launch", "key": "--speculative-num-steps", "value": 3}]
results = {"healthy": False, "next_step": "apply the <edits>", "diagnosis": [
    {"kind": "aux.layers", "confidence": 0.97, "evidence": "", "remedy": "", "edits": edits},
    {"kind": "quality.domain", "confidence": 0.1, "evidence": "", "remedy": "",
     "edits": [{"where": "launch", "key": "--tp", "value": 9}]}]}
"""


def write_notebook(folder: Path, stem: str, work: str = "results = {}", tag: str = "parameters") -> None:
    """A notebook whose saved kernel is some venv of its author's."""
    cell = nbformat.v4.new_code_cell(render_parameters_cell(MODELS[stem]), metadata={"tags": [tag]})
    start = f"from eagle3lib.reporting.records import start\nrun = start({stem!r}, globals())\np = run.parameters"
    body = [cell, *map(nbformat.v4.new_code_cell, (start, work, "run.finish(results)"))]
    kernel = {"name": "my-venv", "display_name": "My venv", "language": "python"}
    folder.mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=body, metadata={"kernelspec": kernel}), folder / f"{stem}.ipynb")


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """A folder with the six notebooks and a draft."""
    for stem in MODELS:
        write_notebook(tmp_path / "notebooks", stem, VERDICT if stem == "06_verdict" else "results = {}")
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps({"eagle_config": {"layers": [2, 15, 27]}}))
    (draft / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def command(bench: Path, plan: dict[str, Any], *options: str) -> list[str]:
    (bench / "plan.yaml").write_text(yaml.safe_dump(plan))
    return [sys.executable, "-m", "eagle3lib", "run", "plan.yaml", "--notebooks", "notebooks", *options]


def run(bench: Path, plan: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command(bench, plan, *options), cwd=bench, env=environment, capture_output=True, text=True, timeout=300
    )


def test_the_story_of_a_fault_and_its_cure(bench: Path) -> None:
    plan = {
        "out": "runs/demo",
        "defaults": {"draft": "draft", "launch": "serve --speculative-draft-model-path draft --x '{run_dir}/{y}'"},
        "runs": [
            {"name": "incident", "notebooks": ["06"]},
            {"name": "cured", "cured_from": "incident", "notebooks": [1]},
        ],
    }
    done = run(bench, plan)
    assert done.returncode == 0, done.stderr
    out = bench / "runs" / "demo"
    before = json.loads((out / "incident" / "06_verdict.json").read_text())["parameters"]
    assert before["draft"] == str(bench / "draft")
    assert before["launch"].endswith(f"'{out}/incident/{{y}}'")
    after = json.loads((out / "cured" / "01_config_inspection.json").read_text())["parameters"]
    assert after["draft"] == str(out / "cured" / "cured_draft")
    assert "--speculative-num-steps 3" in after["launch"] and "--tp" not in after["launch"]
    assert f"--speculative-draft-model-path {after['draft']}" in after["launch"]
    config = json.loads((out / "cured" / "cured_draft" / "config.json").read_text())
    assert config == {"eagle_config": {"layers": [0, 3, 16]}}
    assert (out / "cured" / "cured_draft" / "model.safetensors").read_bytes() == b"weights"
    index = (out / "index.html").read_text()
    assert "aux.layers" in index and "apply the &lt;edits&gt;" in index and "97 %" in index
    assert (out / "incident" / "06_verdict.html").is_file()


def test_failures_stay_where_they_are(bench: Path) -> None:
    """A dead kernel, a raised error and a silent exit; the run's verdict and the other run go on."""
    notebooks = bench / "notebooks"
    orphan = "import subprocess, sys\nsubprocess.Popen(['sleep', '987.25'], start_new_session=True)\n"
    write_notebook(notebooks, "02_manual_forward", orphan + "import os\nos.kill(os.getpid(), 9)")
    write_notebook(notebooks, "03_acceptance", "raise ValueError('token=hf_abcDEF1234567 is <bad>')")
    write_notebook(notebooks, "04_capture_diff", "import sys\nsys.exit()")
    plan = {"out": "runs", "runs": [{"name": "bad", "notebooks": [2, 3, 4, 6]}, {"name": "good", "notebooks": [1]}]}
    done = run(bench, plan, "--jobs", "2")
    assert done.returncode == 1, done.stderr
    assert not any("987.25" in process.cmdline() for process in psutil.process_iter(["cmdline"]) if _alive(process))
    assert "the kernel died" in done.stderr and "the notebook ended early" in done.stderr
    written = {path.name for path in (bench / "runs").rglob("*.json")}
    assert written == {"06_verdict.json", "01_config_inspection.json"}
    page = (bench / "runs" / "bad" / "03_acceptance.html").read_text()
    assert "ValueError: token=*** is &lt;bad&gt;" in page and "hf_abc" not in page
    assert {path.name for path in (bench / "runs" / "bad").glob("*.html")} == {
        "02_manual_forward.html", "03_acceptance.html", "04_capture_diff.html", "06_verdict.html"
    }  # fmt: skip
    assert "ValueError: token=*** is &lt;bad&gt;" in (bench / "runs" / "index.html").read_text()


def test_resume_repeats_what_has_no_finished_record(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are real, the kernels are not: what a resumed batch would execute is all that counts."""
    monkeypatch.chdir(bench)
    asked: list[str] = []

    def execute(self: Batch, run: PlannedRun, stem: str, parameters: dict[str, Any]) -> Outcome:
        asked.append(stem[:2])
        start(stem, parameters).finish({}, partial="odd" if stem == "05_throughput_sweep" else "")
        return Outcome(stem, "finished")

    def resumed(**changed: Any) -> list[str]:
        asked.clear()
        entry = {"name": "a", "notebooks": [1, 3, 5, 6], "parameters": {"draft": "draft", **changed}}
        (bench / "plan.yaml").write_text(yaml.safe_dump({"out": "runs", "runs": [entry]}))
        Batch(read_plan(bench / "plan.yaml"), bench / "notebooks", resume=True).run()
        return asked

    monkeypatch.setattr(Batch, "_execute", execute)
    assert resumed(temperature="1e-5") == ["01", "03", "05", "06"]
    assert resumed(temperature=1e-5) == ["05", "06"], "05 is partial, and 06 reads its record"
    assert resumed(temperature=0.5) == ["03", "05", "06"]
    (bench / "runs" / "a" / "01_config_inspection.json").unlink()
    assert resumed(temperature=0.5) == ["01", "05", "06"]
    (bench / "draft" / "config.json").write_text("{}")
    assert resumed(temperature=0.5) == ["01", "03", "05", "06"], "another draft at the same path"


def test_interrupt_leaves_nothing_running(bench: Path) -> None:
    orphan = "import subprocess, time\nsubprocess.Popen(['sleep', '987.75'])\ntime.sleep(60)"
    write_notebook(bench / "notebooks", "01_config_inspection", orphan)
    plan = {"out": "runs", "runs": [{"name": "a", "notebooks": [1]}, {"name": "b", "notebooks": [1]}]}
    batch = subprocess.Popen(
        command(bench, plan), cwd=bench, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not _running("987.75"):
        assert time.monotonic() < deadline and batch.poll() is None
        time.sleep(0.2)
    children = psutil.Process(batch.pid).children(recursive=True)
    os.killpg(batch.pid, signal.SIGINT)
    assert batch.wait(60) == 130
    assert not _running("987.75") and not any(map(_alive, children))
    assert not list((bench / "runs").rglob("*.json"))


def test_plain_papermill_refuses_what_it_only_warns_about(bench: Path) -> None:
    command = [sys.executable, "-m", "papermill", "notebooks/01_config_inspection.ipynb", "out.ipynb", "-k", "python3"]
    parameters = ["-p", "run_dir", "here", "-p", "longest_prompts", "5"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command + parameters, cwd=bench, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "use the nearest known name, longest_prompt" in done.stderr
    assert not (bench / "here").exists()


GOOD: dict[str, Any] = {"name": "a", "notebooks": ["01", 2]}
WRONG_PLANS: list[tuple[dict[str, Any], str]] = [
    ({"runs": [GOOD]}, "no out"),
    ({"out": "o", "run": [GOOD]}, "runs"),
    ({"out": "o", "runs": []}, "at least 1 item"),
    ({"out": "o", "runs": [GOOD | {"notebook": [1]}]}, "notebooks"),
    ({"out": "o", "runs": [GOOD | {"folder": "/x"}]}, "runs[0].folder"),
    ({"out": " ", "runs": [GOOD]}, "a folder"),
    ({"out": "o", "runs": [{"name": "a"}]}, "no notebooks"),
    ({"out": "o", "defaults": [1], "runs": [GOOD]}, "defaults"),
    ({"out": "o", "runs": [GOOD | {"notebooks": [7]}]}, "01_config_inspection"),
    ({"out": "o", "runs": [GOOD | {"notebooks": [1, "01"]}]}, "each notebook once"),
    ({"out": "o", "runs": [GOOD, GOOD]}, "nothing else"),
    ({"out": "o", "runs": [GOOD | {"name": "../b"}]}, "folder name"),
    ({"out": "o", "runs": [GOOD | {"name": ".."}]}, "folder name"),
    ({"out": "o", "runs": [GOOD | {"name": "/tmp/x"}]}, "folder name"),
    ({"out": "o", "runs": [GOOD | {"parameters": {"dephts": 3}}]}, "depths"),
    ({"out": "o", "runs": [GOOD | {"parameters": {"depths": "three"}}]}, "int"),
    ({"out": "o", "runs": [GOOD | {"parameters": {"grid": [[0, 0, 0]]}}]}, "unknown name"),
    ({"out": "o", "runs": [GOOD | {"parameters": {"run_dir": "x"}}]}, "the batch sets it"),
    ({"out": "o", "defaults": {"drafts": "x"}, "runs": [GOOD]}, "draft"),
    ({"out": "o", "runs": [{"name": "c", "cured_from": "a"}, GOOD]}, "earlier run"),
    ({"out": "o", "runs": [GOOD, {"name": "c", "cured_from": "a"}]}, "notebook 06"),
]


@pytest.mark.parametrize(("plan", "told"), WRONG_PLANS)
def test_a_wrong_plan_is_refused_and_told(tmp_path: Path, plan: dict[str, Any], told: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    with pytest.raises(InputError) as refused:
        read_plan(path)
    assert told in str(refused.value)


def test_a_wrong_plan_starts_nothing(bench: Path) -> None:
    done = run(bench, {"out": "runs", "runs": [GOOD | {"parameters": {"dephts": 3}}]})
    assert done.returncode == 2 and "depths" in done.stderr and not (bench / "runs").exists()
    write_notebook(bench / "notebooks", "02_manual_forward", tag="untagged")
    done = run(bench, {"out": "runs", "runs": [GOOD]})
    assert done.returncode == 2 and "tagged parameters" in done.stderr and not (bench / "runs").exists()
    (bench / "twice.yaml").write_text("out: a\nout: b\nruns: [{name: a, notebooks: [01, 06]}]")
    with pytest.raises(InputError, match="stands twice"):
        read_plan(bench / "twice.yaml")


def test_a_default_reaches_the_notebooks_that_know_it(tmp_path: Path) -> None:
    plan = {"out": "o", "defaults": {"samples": "s", "depths": 5}, "runs": [GOOD]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    (planned,) = read_plan(tmp_path / "plan.yaml").runs
    assert planned.stems == ("01_config_inspection", "02_manual_forward")
    assert "samples" not in planned.parameters_of("01_config_inspection")
    assert planned.parameters_of("02_manual_forward")["depths"] == 5
    assert planned.parameters_of("02_manual_forward")["samples"] == os.path.abspath("s")


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _running(word: str) -> bool:
    return any(word in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
