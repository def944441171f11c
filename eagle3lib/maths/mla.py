"""Multi-head latent attention: full heads of q, k and v out of two low-rank latents.

DeepSeek-V2 (arXiv 2405.04434, 2.1). SGLang serves it in drafts as ``srt/models/kimi_k25_eagle3.py`` on top of
``srt/models/deepseek_v2.py`` ``DeepseekV2AttentionMLA``: the down projections read the doubled input, one
rotary key is shared by all heads, and rotary pairs lie side by side where Llama has them in two halves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3lib.maths.kernels import apply_rotary_pos_emb, rms_norm
from eagle3lib.reading.draft_config import LatentShape


@dataclass(frozen=True)
class MLA:
    """The projections of one layer; of a head's key ``shape.rope`` values are rotated, ``shape.nope`` are not.

    Without ``q_a_proj`` (``q_lora_rank`` null) ``q_b_proj`` reads the layer's input itself.
    """

    q_a_proj: Tensor | None  # [q_rank, in]
    q_a_layernorm: Tensor | None  # [q_rank]
    q_b_proj: Tensor  # [heads * (nope + rope), q_rank]
    kv_a_proj_with_mqa: Tensor  # [kv_rank + rope, in]
    kv_a_layernorm: Tensor  # [kv_rank]
    kv_b_proj: Tensor  # [heads * (nope + value), kv_rank]
    shape: LatentShape

    def qkv(
        self, x: Tensor, skip: int, cos_sin: tuple[Tensor, Tensor], eps: float, scaling: Mapping[str, Any] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries of all but the first ``skip`` rows, rotated keys and values of all rows of ``x [R, in]``.

        All three are ``[rows, heads, max(nope + rope, value)]``, padded with zeros, so that any attention takes them.
        It scales by that width; the queries are multiplied so that the scale is DeepSeek's.
        """
        g = self.shape
        wide = max(g.nope + g.rope, g.value)
        q = x[skip:]
        if self.q_a_proj is not None:
            q = rms_norm(F.linear(q, self.q_a_proj), self.q_a_layernorm, eps)  # [S, q_rank]
        q = F.linear(q, self.q_b_proj).unflatten(-1, (-1, g.nope + g.rope))  # [S, heads, nope + rope]
        latent, shared = F.linear(x, self.kv_a_proj_with_mqa).split([g.kv_rank, g.rope], dim=-1)
        up = F.linear(rms_norm(latent, self.kv_a_layernorm, eps), self.kv_b_proj).unflatten(-1, (-1, g.nope + g.value))
        k, v = up.split([g.nope, g.value], dim=-1)  # [R, heads, nope], [R, heads, value]
        cos, sin = cos_sin
        rotated_q = self._rotate(q[..., g.nope :], cos[skip:], sin[skip:])
        rotated_k = self._rotate(shared[:, None], cos, sin).expand(-1, k.shape[1], -1)
        q = torch.cat([q[..., : g.nope], rotated_q], -1) * (yarn_softmax_scale(scaling) * math.sqrt(wide / q.shape[-1]))
        return _widen(q, wide), _widen(torch.cat([k, rotated_k], -1), wide), _widen(v, wide)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Interleaved pairs are reordered to halves first, in q and k alike: their products stay the same."""
        if self.shape.interleaved:
            x = torch.cat([x[..., ::2], x[..., 1::2]], -1)
        return apply_rotary_pos_emb(x, cos, sin)


def _widen(x: Tensor, width: int) -> Tensor:
    return F.pad(x, (0, width - x.shape[-1]))


def yarn_rope_scaling(scaling: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """``scaling`` for transformers' YaRN tables, as SGLang reads it for MLA: whatever its type, it is YaRN.

    Source: ``DeepseekV2AttentionMLA.__init__`` (``rope_type``), ``DeepseekScalingRotaryEmbedding`` (amplitude).
    """
    if _is_plain_rope(scaling):
        return None
    length = "original_max_position_embeddings"
    kept = {key: scaling[key] for key in ("beta_fast", "beta_slow", length) if scaling.get(key) is not None}
    amplitude = _mscale(scaling, scaling.get("mscale", 1)) / _mscale(scaling, scaling.get("mscale_all_dim", 0))
    amplitude *= scaling.get("attn_factor", 1)
    return kept | {"rope_type": "yarn", "factor": scaling.get("factor", 1.0), "attention_factor": amplitude}


def yarn_softmax_scale(scaling: Mapping[str, Any] | None) -> float:
    """The factor of YaRN on attention scores: mscale squared (``compute_mla_mscale_scaling``)."""
    off = _is_plain_rope(scaling) or not scaling.get("apply_yarn_scaling", True) or not scaling.get("apply_scale", True)
    return 1.0 if off else _mscale(scaling, scaling.get("mscale_all_dim", 0)) ** 2


def _is_plain_rope(scaling: Mapping[str, Any] | None) -> bool:
    return not scaling or scaling.get("rope_type", scaling.get("type")) == "default"


def _mscale(scaling: Mapping[str, Any], weight: float) -> float:
    return 0.1 * weight * math.log(max(scaling.get("factor", 1.0), 1.0)) + 1.0
