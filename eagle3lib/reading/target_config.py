"""A target model's config.json, flat or with the language model nested inside, as one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.fields import first_name
from eagle3lib.reading.files import read_object
from eagle3lib.reading.rope import Rope, read_rope

#: The SGLang model file (without ``.py``) whose capture rule applies: its architectures.
#: Source: sgl-project/sglang 0.5.23 python/sglang/srt/models/*.py ``EntryClass`` and inheritance.
_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "MistralForCausalLM", "Ministral3ForCausalLM",
              "Phi3ForCausalLM", "InternLM3ForCausalLM", "TeleFLMForCausalLM"),
    "llama4": ("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
    "qwen2_moe": ("Qwen2MoeForCausalLM",),
    "qwen3_moe": ("Qwen3MoeForCausalLM",),
    "qwen3_next": ("Qwen3NextForCausalLM",),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM",
                "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration",),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
    "deepseek_v2": ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM",
                    "GlmMoeDsaForCausalLM", "MistralLarge3ForCausalLM"),
    "kimi_k25": ("KimiK25ForConditionalGeneration",),
    "glm4_moe": ("Glm4MoeForCausalLM",),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM",),
    "glm5_next": ("Glm5NextForConditionalGeneration",),
    "gpt_oss": ("GptOssForCausalLM",),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    "gemma4": ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    "minimax_m2": ("MiniMaxM2ForCausalLM",),
    "minimax_m3": ("MiniMaxM3SparseForCausalLM",),
    "minimax_m3_vl": ("MiniMaxM3SparseForConditionalGeneration",),
    "bailing_moe": ("BailingMoEForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
    "longcat_flash": ("LongcatFlashForCausalLM",),
    "exaone_moe": ("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"),
    "apertus": ("ApertusForCausalLM",),
}  # fmt: skip
#: Architecture -> family.
FAMILIES: Mapping[str, str] = MappingProxyType(
    {architecture: family for family, names in _ARCHITECTURES.items() for architecture in names}
)


@dataclass(frozen=True)
class TargetConfig:
    """What of a target matters to a draft. ``layers`` is n, ``max_positions`` in tokens."""

    architecture: str
    #: A value of :data:`FAMILIES`, or ``unknown``.
    family: str
    layers: int
    hidden_size: int
    vocab_size: int
    rms_norm_eps: float
    max_positions: int | None
    rope: Rope
    tied: bool
    notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, folder: str | Path) -> TargetConfig:
        """Read ``folder/config.json``; :class:`InputError` when it cannot be used."""
        return cls.from_dict(read_object(folder, "config.json", duplicates=[]), folder)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: object = "target config") -> TargetConfig:
        """A parsed config; the language model may be nested in ``text_config`` (or ``llm_config``...)."""
        places = ("text_config", "llm_config", "language_config", "thinker_config")
        nested: dict[str, Any] = next((raw[k] for k in places if isinstance(raw.get(k), dict)), {})
        text = {**raw, **{k: v for k, v in nested.items() if v is not None}}

        def positive(*names: str) -> int:
            fits = [value for name in names if type(value := text.get(name)) is int and value > 0]
            if not fits:
                cure = "give the target's own config.json"
                raise InputError(f"{where}: {names[0]}", text.get(names[0]), "a positive integer", cure)
            return fits[0]

        architecture = first_name(raw.get("architectures") or nested.get("architectures"))
        family = FAMILIES.get(architecture, "unknown")
        notes = []
        if family == "unknown":
            notes.append(
                f"{architecture or 'no architecture'}: a family whose capture rule is not known here; "
                "the common one (captured boundary = configured id + 1) is assumed"
            )
        limit = text.get("max_position_embeddings", text.get("max_sequence_length", text.get("seq_length")))
        tied = text.get("tie_word_embeddings")
        if tied is None:
            tied = family in ("gemma3", "gemma4")
            notes.append(f"tie_word_embeddings is not given; {tied} is assumed")
        eps = text.get("rms_norm_eps", text.get("layer_norm_epsilon"))
        return cls(
            architecture=architecture,
            family=family,
            layers=positive("num_hidden_layers", "n_layer", "num_layers"),
            hidden_size=positive("hidden_size", "n_embd", "d_model"),
            vocab_size=positive("vocab_size"),
            rms_norm_eps=float(eps) if isinstance(eps, (int, float)) else 1e-6,
            max_positions=limit if isinstance(limit, int) and limit > 0 else None,
            rope=read_rope(text, where),
            tied=bool(tied),
            notes=tuple(notes),
        )
