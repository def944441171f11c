"""Which tensors are read: against the ``load_weights`` of the installed SGLang, name by name."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_source import method
from static_pairs import Pair

from eagle3lib.engine.loading import engine_name, parameters
from eagle3lib.reading.draft_config import DraftConfig

SOUND = Pair()
CONFIG = SOUND.draft
MLA = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_FUSE = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj_with_mqa",
    "kv_a_proj_with_mqa": "fused_qkv_a_proj_with_mqa",
}


def fused(name: str) -> str:
    return re.sub(r"\.(\w+_proj|kv_a_proj_with_mqa)\.", lambda m: f".{_FUSE.get(m[1], m[1])}.", name)


def real_loads(draft: DraftConfig, names: list[str]) -> set[str]:
    """The engine's parameters that its own loader fills from these names, and its maps."""
    loaded: set[str] = set()
    params = {
        name: SimpleNamespace(weight_loader=lambda *_, name=name: loaded.add(name))
        for name in map(fused, parameters(draft, "0.5.23"))
    }
    model = SimpleNamespace(named_parameters=lambda: params.items(), hot_token_id=None, post_load_weights=lambda: None)
    file, owner = (
        ("kimi_k25_eagle3", "Eagle3DeepseekV2ForCausalLM") if draft.mla else ("llama_eagle3", "LlamaForCausalLMEagle3")
    )
    silent = SimpleNamespace(warning=lambda *_: None)
    load = method(
        file, owner, "load_weights", {"torch": torch, "re": re, "logger": silent, "default_weight_loader": None}
    )
    load(model, [(name, torch.zeros(2, 2)[0].long()) for name in names])
    return loaded | ({"d2t"} if model.hot_token_id is not None else set())


PIECES = st.sampled_from(
    [
        "midlayer",
        "layers.0",
        "layers.1",
        "self_attn",
        "q_proj",
        "qkv_proj",
        "k_proj",
        "o_proj",
        "mlp",
        "gate_proj",
        "gate_up_proj",
        "down_proj",
        "hidden_norm",
        "input_layernorm",
        "norm",
        "fc",
        "fc_norm.0",
        "aux_norm_mid",
        "input_norm",
        "lm_head",
        "embed_tokens",
        "model",
        "draft_model",
        "weight",
        "bias",
        "weight_scale",
        "q_norm",
        "kv_b_proj",
        "q_a_layernorm",
    ]
)
REAL = [
    *SOUND.weights,
    "layers.0.hidden_norm.weight",
    "model.midlayer.mlp.up_proj.weight",
    "fc_norm.2.weight",
    "aux_norm_high.weight",
    "draft_model.d2t",
    "model.norm.weight",
    "embed_tokens.weight",
    "midlayer.self_attn.q_proj.bias",
    "layers.0.self_attn.kv_b_proj.weight",
    "layers.0.self_attn.q_a_layernorm.weight",
    "midlayer.self_attn.q_b_proj.weight",
]


@pytest.mark.parametrize("mla", [False, True])
@settings(max_examples=150, deadline=None)
@given(
    name=st.one_of(st.sampled_from(REAL), st.lists(PIECES, min_size=1, max_size=5).map(".".join)), normed=st.booleans()
)
def test_one_tensor_goes_where_the_engine_puts_it(mla: bool, name: str, normed: bool) -> None:
    draft = DraftConfig.from_dict({**CONFIG, **(MLA if mla else {}), "fc_norm": normed, "norm_before_fc": normed})
    where = engine_name(name, parameters(draft, "0.5.23"), draft, "0.5.23")
    expected = set() if where in (None, "t2d") else {fused(where)}
    assert real_loads(draft, [name]) == expected


def test_the_mla_projections_are_fused_from_their_pair() -> None:
    draft = DraftConfig.from_dict({**CONFIG, **MLA})
    names = ["layers.0.self_attn.q_a_proj.weight", "layers.0.self_attn.kv_a_proj_with_mqa.weight"]
    assert real_loads(draft, names) == {"model.midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight"}
    assert real_loads(draft, ["layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight"]) == set()
    known = parameters(draft, "0.5.23")
    assert {fused(engine_name(n, known, draft, "0.5.23")) for n in names} == real_loads(draft, names)
