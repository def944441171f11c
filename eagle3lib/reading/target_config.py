"""A target model's config.json, flat or with the language model nested inside, as one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.files import inside, parse_object, read_text
from eagle3lib.reading.rope import Rope, read_rope

#: Architecture -> family: the SGLang model file (without ``.py``) whose capture rule applies.
#: Source: sgl-project/sglang 0.5.23 python/sglang/srt/models/*.py ``EntryClass`` and inheritance.
FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "llama",
        "Ministral3ForCausalLM": "llama",
        "Phi3ForCausalLM": "llama",
        "InternLM3ForCausalLM": "llama",
        "TeleFLMForCausalLM": "llama",
        "Llama4ForCausalLM": "llama4",
        "Llama4ForConditionalGeneration": "llama4",
        "Qwen2ForCausalLM": "qwen2",
        "Qwen3ForCausalLM": "qwen3",
        "Qwen2MoeForCausalLM": "qwen2_moe",
        "Qwen3MoeForCausalLM": "qwen3_moe",
        "Qwen3NextForCausalLM": "qwen3_next",
        "Qwen3_5ForCausalLM": "qwen3_5",
        "Qwen3_5MoeForCausalLM": "qwen3_5",
        "Qwen3_5ForConditionalGeneration": "qwen3_5",
        "Qwen3_5MoeForConditionalGeneration": "qwen3_5",
        "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
        "Qwen3VLForConditionalGeneration": "qwen3_vl",
        "Qwen3VLMoeForConditionalGeneration": "qwen3_vl",
        "DeepseekV2ForCausalLM": "deepseek_v2",
        "DeepseekV3ForCausalLM": "deepseek_v2",
        "DeepseekV32ForCausalLM": "deepseek_v2",
        "GlmMoeDsaForCausalLM": "deepseek_v2",
        "MistralLarge3ForCausalLM": "deepseek_v2",
        "KimiK25ForConditionalGeneration": "kimi_k25",
        "Glm4MoeForCausalLM": "glm4_moe",
        "Glm4MoeLiteForCausalLM": "glm4_moe_lite",
        "Glm5NextForConditionalGeneration": "glm5_next",
        "GptOssForCausalLM": "gpt_oss",
        "Gemma3ForCausalLM": "gemma3",
        "Gemma3ForConditionalGeneration": "gemma3",
        "Gemma4ForCausalLM": "gemma4",
        "Gemma4ForConditionalGeneration": "gemma4",
        "MiniMaxM2ForCausalLM": "minimax_m2",
        "MiniMaxM3SparseForCausalLM": "minimax_m3",
        "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_vl",
        "BailingMoEForCausalLM": "bailing_moe",
        "BailingMoeForCausalLM": "bailing_moe",
        "BailingMoeV2ForCausalLM": "bailing_moe",
        "LongcatFlashForCausalLM": "longcat_flash",
        "ExaoneMoEForCausalLM": "exaone_moe",
        "ExaoneMoeForCausalLM": "exaone_moe",
        "ApertusForCausalLM": "apertus",
    }
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
    quantization: str | None
    model_type: str
    raw: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, folder: str | Path) -> TargetConfig:
        """Read ``folder/config.json``; :class:`InputError` when it cannot be used."""
        path = inside(Path(folder), "config.json")
        return cls.from_dict(parse_object(read_text(path), Path(folder) / "config.json", duplicates=[]), folder)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: object = "target config") -> TargetConfig:
        """A parsed config; the language model may be nested in ``text_config`` (or ``llm_config``...)."""
        nested = next(
            (
                raw[k]
                for k in ("text_config", "llm_config", "language_config", "thinker_config")
                if isinstance(raw.get(k), dict)
            ),
            {},
        )
        text = {**raw, **{k: v for k, v in nested.items() if v is not None}}

        def positive(key: str, *others: str) -> int:
            for name in (key, *others):
                value = text.get(name)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
            raise InputError(
                f"{where}: {key}", text.get(key), "a positive integer", "give the target's own config.json"
            )

        names = raw.get("architectures") or nested.get("architectures") or [""]
        architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
        family = FAMILIES.get(architecture, "unknown")
        notes = (
            []
            if family != "unknown"
            else [
                f"{architecture or 'no architecture'}: a family whose capture rule is not known here; "
                "the common one (captured boundary = configured id + 1) is assumed"
            ]
        )
        quantization = text.get("quantization_config") or text.get("compression_config")
        method = quantization.get("quant_method", "unnamed") if isinstance(quantization, dict) else None
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
            quantization=None if method is None else str(method),
            model_type=str(text.get("model_type") or ""),
            raw=MappingProxyType(dict(raw)),
            notes=tuple(notes),
        )
