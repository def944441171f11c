"""Draft and target configs of every dialect, and what their trainers did.

``data/public_configs`` holds field names and values of public configs: AQ-MedAI/Kimi-K2-Instruct-eagle3,
nm-testing/EAGLE3-LLaMA3.1-Instruct-8B-converted (huggingface.co); sgl-project/SpecForge configs/;
Tencent/AngelSlim train/configs/; SafeAILab/EAGLE traineagle3/config.json; and, in part,
RedHatAI/gpt-oss-20b-speculator.eagle3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from static_pairs import H, Pair

from eagle3lib.engine.engine_config import resolve_engine_config
from eagle3lib.errors import InputError
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.draft_config import DraftConfig
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.target_config import FAMILIES, TargetConfig
from eagle3lib.trainers.trained_wiring import trained_wiring

CONFIGS = Path(__file__).parent / "data" / "public_configs"
LLAMA = TargetConfig.from_dict(
    {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256}
)
KIMI = TargetConfig.from_dict(
    {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840}
)


def public(name: str) -> DraftConfig:
    return DraftConfig.from_dict(json.loads((CONFIGS / f"{name}.json").read_text()), name)


@pytest.mark.parametrize(
    "name, dialect, fields",
    [
        (
            "AQ-MedAI_Kimi-K2-Instruct-eagle3",
            "sglang",
            {"aux_ids": (2, 30, 58), "hidden_size": 7168, "draft_vocab_size": 32000},
        ),
        ("angelslim-qwen3-1.7b-eagle3", "angelslim", {"tied": True, "reduced": True, "window": None}),
        ("eagle-traineagle3-llama31-8b", "eagle", {"head_dim": 128, "draft_vocab": 32000}),
        (
            "nm-testing_EAGLE3-LLaMA3.1-Instruct-8B-converted",
            "speculators",
            {
                "hidden_size": 4096,
                "nested": True,
                "norm_before_residual": False,
                "verifier": "meta-llama/Llama-3.1-8B-Instruct",
            },
        ),
        (
            "redhatai-gpt-oss-20b-speculator.eagle3.partial",
            "speculators",
            {"norm_before_fc": True, "norm_before_residual": True, "draft_vocab_size": 64000, "head_dim": 64},
        ),
        ("specforge-deepseek-r1-eagle3", "sglang", {"architecture": "DeepseekV3ForCausalLMEagle3", "head_dim": None}),
        ("specforge-gpt-oss-20B-eagle3", "sglang", {"aux_ids": (1, 11, 21), "max_positions": 4096}),
    ],
)
def test_public_configs(name: str, dialect: str, fields: dict[str, Any]) -> None:
    found = public(name)
    assert found.dialect == dialect
    assert {key: getattr(found, key) for key in fields} == fields


def test_what_is_assumed_is_listed() -> None:
    assert public("eagle-traineagle3-llama31-8b").assumed == (
        "head_dim is not given; 128 is assumed",
        "rope_theta is not given; 10000.0 is assumed",
    )
    assert public("specforge-qwen3-8b-eagle3").assumed == ()


@pytest.mark.parametrize(
    "fields, theta, kind, spelling",
    [
        ({"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4}}, 5e5, "yarn", "legacy"),
        (
            {"rope_parameters": {"rope_theta": 1e6, "rope_type": "llama3", "factor": 8}},
            1e6,
            "llama3",
            "rope_parameters",
        ),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "rope_theta": 5e5}, 1e6, "default", "both"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 7.0}}}, 7.0, "default", "rope_parameters"),
        ({"rope_theta": None, "rope_scaling": None}, 1e4, "default", "absent"),
    ],
)
def test_both_spellings_of_rope(fields: dict[str, Any], theta: float, kind: str, spelling: str) -> None:
    rope = DraftConfig.from_dict(fields).rope
    assert (rope.theta, rope.kind, rope.spelling) == (theta, kind, spelling)


def test_odd_spellings() -> None:
    read = DraftConfig.from_dict
    assert read({"truncated_vocab_size": 64, "vocab_size": 128}).draft_vocab == 64
    assert read({"eagle_aux_hidden_state_layer_ids": [2, 6]}).dialect == "vllm"
    assert read({"eagle_config": {"use_last_layernorm": True}}).dialect == "modelopt"
    assert read({"eagle_config": None, "draft_vocab_size": None}).aux_ids is None
    assert read({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 8}).mla
    assert read({"sliding_window": 9, "layer_types": ["full_attention"]}).window is None
    assert read({"sliding_window": 9, "layer_types": ["sliding_attention"]}).window == 9


def test_duplicate_keys_are_read_as_json_reads_them_and_noted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "hidden_size": 16}')
    found = DraftConfig.open(tmp_path)
    assert found.hidden_size == 16 and found.duplicates == ("hidden_size",) and "twice" in found.assumed[-1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"rope_theta": NaN}',
        '{"rope_theta": -Infinity}',
        "{" + '"a": {' * 300 + "}" * 301,
        "[" * 100000,
        '{"hidden_size": "x"}',
        '{"hidden_size": -3}',
        '{"eagle_config": 3}',
        '{"rope_theta": 0}',
        '{"architectures": "L"}',
        '{"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["<b>"]}}',
        '{"norm_output": "yes"}',
        '{"rms_norm_eps": 7}',
        "1" * 9999,
    ],
)
def test_unusable_configs_are_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json|draft|" + str(tmp_path)):
        DraftConfig.open(tmp_path)


def test_targets_flat_and_nested() -> None:
    text = {
        "num_hidden_layers": 61,
        "hidden_size": 16,
        "vocab_size": 32,
        "rope_theta": 5e4,
        "max_position_embeddings": 64,
    }
    nested = TargetConfig.from_dict({"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text})
    assert (nested.family, nested.layers, nested.rope.theta, nested.max_positions) == ("kimi_k25", 61, 5e4, 64)
    assert TargetConfig.from_dict({**text, "architectures": ["Gemma3ForCausalLM"]}).tied
    strange = TargetConfig.from_dict({**text, "architectures": ["NewForCausalLM"]})
    assert strange.family == "unknown" and "NewForCausalLM" in strange.notes[0]
    assert {"llama", "qwen3_moe", "qwen3_next", "deepseek_v2", "gpt_oss", "gemma3", "llama4", "minimax_m2"} <= set(
        FAMILIES.values()
    )
    with pytest.raises(InputError, match="num_hidden_layers"):
        TargetConfig.from_dict({"architectures": ["LlamaForCausalLM"]})


@pytest.mark.parametrize(
    "raw, target, boundaries, candidates",
    [
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 29], "speculators_config": {}}, LLAMA, (2, 16, 29), 1),
        ({"aux_hidden_states_layer_ids": [20, 1, 9]}, LLAMA, (21, 2, 10), 1),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28], "use_last_layernorm": True}},
            LLAMA,
            (2, 16, 29),
            1,
        ),
        ({"architectures": ["LlamaForCausalLM"]}, LLAMA, (2, 16, 29), 1),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [24, 27, 30]}}, LLAMA, (25, 28, 31), 1),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}}, LLAMA, None, 2),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}}, KIMI, None, 2),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 2, 30]}}, KIMI, (0, 3, 31), 1),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}}, KIMI, (2, 30, 58), 1),
        ({}, None, None, 0),
    ],
)
def test_trained_boundaries(raw: dict, target: TargetConfig | None, boundaries: tuple | None, candidates: int) -> None:
    found = trained_wiring(DraftConfig.from_dict(raw), target, None)
    assert (found.boundaries, len(found.candidates)) == (boundaries, candidates)
    assert found.reason and (found.wiring is None) is (boundaries is None)


def test_trained_switches(tmp_path: Path) -> None:
    pair = Pair()
    pair.weights |= {"input_norm.weight": torch.rand(3 * H)}
    pair.speculators(norm_before_residual=True, norm_output=True)
    folder, _ = pair.write(tmp_path)
    draft, target = DraftConfig.open(folder), TargetConfig.from_dict(pair.target)
    trained = trained_wiring(draft, target, Checkpoint.open(folder)).wiring
    assert trained is not None
    pair.draft = {**Pair().draft, "norm_output": True, "norm_before_fc": True}
    served = resolve_engine_config(DraftConfig.from_dict(pair.draft), target, Launch.parse(""), "sglang==0.5.23").wiring
    assert served is not None
    assert served.differences(trained) == {"norm_before_residual": (False, True)}
    angel = trained_wiring(public("angelslim-qwen3-8b-eagle3"), LLAMA, None)
    assert angel.switches.rope_theta == 10000 and "10000" in angel.notes[0]
