"""Our forward pass against SGLang's own draft in a running engine: stage by stage, and step by step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3lib.engine.capture import capture_requests
from eagle3lib.engine.server import Server
from eagle3lib.engine.sweep import setting_launch
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.prediction import BEYOND, continued, predict
from eagle3lib.measuring.replay import STAGES, replay
from eagle3lib.measuring.sample_states import sample_states
from eagle3lib.measuring.served import agreement
from eagle3lib.reading.captures import read_capture
from eagle3lib.reading.engine_reports import RequestReport
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.prompts import Prompt
from eagle3lib.reading.samples import Sample
from eagle3lib.reading.setting import Setting
from tests.engine.test_server import LAUNCH
from tests.tiny import tiny_draft, tiny_target

pytest.importorskip("sglang")
pytest.importorskip("eagle3_sglang_cpu")
pytestmark = pytest.mark.engine

DRAW = torch.Generator().manual_seed(5)
PROMPTS = [Prompt(tuple(torch.randint(5, 500, (n,), generator=DRAW).tolist())) for n in (3, 8, 21, 40, 14, 9)]
STEPS, NEW_TOKENS, WIDTH = 5, 40, 64
CLASSIC = Wiring(boundaries=(0, 3, 6))
#: name -> (what the draft's config says beside, our wiring, new tensors)
WIRINGS = {
    "classic": ({}, CLASSIC, {}),
    "every norm": (
        {"norm_output": True, "fc_norm": True},
        CLASSIC.replace(norm_output=True, fc_norm=True),
        {f"aux_norm_{which}.weight": WIDTH for which in ("low", "mid", "high")},
    ),
    "one norm before fc, llama3 rope": (
        {"eagle_config": {"norm_before_fc": True, "eagle_aux_hidden_state_layer_ids": [-1, 2, 5]},
         "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 4.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
        CLASSIC.replace(norm_before_fc=True, rope_theta=5e5, rope_scaling={
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}),
        {"input_norm.weight": 3 * WIDTH},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    tiny = tiny_target(folder)
    return folder, tiny


def changed_draft(folder: Path, tiny, fields: dict, added: dict[str, int]) -> None:
    """The tiny draft with other config fields, and with norms that are not ones: one left out would show."""
    tiny_draft(folder, tiny, layer_ids=(-1, 2, 5))
    weights, draw = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(8)
    widths = {name: len(weight) for name, weight in weights.items() if name.endswith("norm.weight")} | added
    weights |= {name: 1 + 0.3 * torch.randn(width, generator=draw) for name, width in widths.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", WIRINGS)
def test_stages_and_steps_are_the_engine_s(name: str, target, tmp_path: Path) -> None:
    fields, wiring, added = WIRINGS[name]
    folder, tiny = target
    changed_draft(tmp_path / "draft", tiny, fields, added)
    with Server.start(
        setting_launch(Launch.parse(LAUNCH), (STEPS, 1, STEPS + 1)), folder, tmp_path / "draft",
        log_path=tmp_path / "log", capture_folder=tmp_path / "passes",
    ) as server:  # fmt: skip
        responses = capture_requests(server, PROMPTS, tmp_path / "capture", max_new_tokens=NEW_TOKENS)
    target = Target.open(folder, cache=tmp_path / "cache")
    draft = Draft.load(tmp_path / "draft", target.embedding)

    stages = replay(read_capture(tmp_path / "capture"), draft, wiring)
    assert [stage.stage for stage in stages] == list(STAGES)
    for stage in stages:
        assert stage.relative <= 1e-5, stage

    samples = []
    for response in responses:
        ids = torch.tensor(response.input_ids + response.output_ids)
        prompt = len(response.input_ids)
        samples.append(Sample("r", ids, torch.arange(len(ids)) >= prompt, prompt))
    setting = Setting(STEPS, 1, STEPS + 1)
    predictions = [
        predict(draft, wiring, sample_states(sample, target, wiring.boundaries), setting, BEYOND)
        for sample in continued(samples, target)
    ]
    reports = [RequestReport(response.histogram, steps=response.accepted_per_step) for response in responses]
    found = agreement(predictions, reports)
    assert all(each.steps.complete for each in predictions) and found.left_out == 0
    assert found.equal == found.steps == sum(len(each.steps.accepted) for each in predictions)
    assert len({accepted for each in predictions for accepted in each.steps.accepted}) >= 3, (
        "accepted counts that differ"
    )
