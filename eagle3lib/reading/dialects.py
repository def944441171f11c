"""Who wrote a draft's config, told from its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Dialect = Literal["sglang", "eagle", "speculators", "modelopt", "angelslim", "vllm"]
#: Fields that only ModelOpt writes into ``eagle_config``.
_MODELOPT = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm", "next_layer_regular",
             "eagle_decoder_type")  # fmt: skip


def dialect_of(raw: Mapping[str, Any], architecture: str) -> tuple[Dialect, str]:
    """Who wrote this config, and the field that says so."""
    inner = raw.get("eagle_config") if isinstance(raw.get("eagle_config"), dict) else {}
    for key in ("speculators_model_type", "speculators_config", "transformer_layer_config"):
        if key in raw:
            return "speculators", f"has {key}"
    if architecture in ("Eagle3Speculator", "Eagle3DraftModel"):
        return "speculators", f"architecture {architecture}"
    if "aux_hidden_states_layer_ids" in raw or "aux_hidden_states_layer_ids" in inner:
        return "angelslim", "has aux_hidden_states_layer_ids, AngelSlim's spelling"
    if extra := next((key for key in inner if key in _MODELOPT or key.startswith("parallel_draft_")), None):
        return "modelopt", f"has eagle_config.{extra}"
    if "eagle_aux_hidden_state_layer_ids" in raw:
        return "vllm", "has eagle_aux_hidden_state_layer_ids at top level"
    if architecture == "Eagle3LlamaForCausalLM":
        return "angelslim", f"architecture {architecture}"
    if architecture in ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM"):
        return "eagle", f"architecture {architecture} beside a draft vocabulary, as SafeAILab/EAGLE writes it"
    return "sglang", f"architecture {architecture or 'not given'}, flat fields"
