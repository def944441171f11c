"""Who wrote a draft's config, told from its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Dialect = Literal["sglang", "eagle", "speculators", "modelopt", "angelslim", "vllm"]
#: Fields that only ModelOpt writes into ``eagle_config``.
_MODELOPT = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm", "next_layer_regular",
             "eagle_decoder_type")  # fmt: skip


def dialect_of(raw: Mapping[str, Any], architecture: str) -> Dialect:
    """Who wrote this config."""
    inner = raw.get("eagle_config") if isinstance(raw.get("eagle_config"), dict) else {}
    if {"speculators_model_type", "speculators_config", "transformer_layer_config"} & raw.keys():
        return "speculators"
    if architecture in ("Eagle3Speculator", "Eagle3DraftModel"):
        return "speculators"
    if "aux_hidden_states_layer_ids" in raw or "aux_hidden_states_layer_ids" in inner:  # AngelSlim's spelling
        return "angelslim"
    if any(key in _MODELOPT or key.startswith("parallel_draft_") for key in inner):
        return "modelopt"
    if "eagle_aux_hidden_state_layer_ids" in raw:
        return "vllm"
    if architecture == "Eagle3LlamaForCausalLM":
        return "angelslim"
    if architecture in ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM"):
        return "eagle"  # as SafeAILab/EAGLE writes it, beside a draft vocabulary
    return "sglang"
