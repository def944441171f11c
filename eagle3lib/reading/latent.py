"""The geometry of multi-head latent attention (DeepSeek, Kimi) in a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LatentShape:
    """Ranks of the latents (``q_rank`` None: queries have none) and the parts of a head, in values.

    ``interleaved``: rotary pairs lie side by side, as SGLang and transformers take where nothing is said.
    """

    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    interleaved: bool


def read_latent(config: Mapping[str, Any]) -> LatentShape | None:
    """Of a flat config; None where a part of it is missing. Whether it counts is for the weights to say."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    parts = [config.get(name) for name in names]
    if not all(isinstance(part, int) and 0 < part < 1 << 30 for part in parts):
        return None
    q_rank = config.get("q_lora_rank")
    interleaved = config.get("rope_interleave", True) is not False
    return LatentShape(q_rank if isinstance(q_rank, int) and q_rank > 0 else None, *parts, interleaved)
