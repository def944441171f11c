"""The few functions that a draft is made of, without checkpoints or wirings.

Rows are token positions of one conversation; there is no batch axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3lib.errors import InputError


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis (Zhang and Sennrich 2019), computed in float32."""
    wide = x.float()
    mean = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])  # no copy of x's size
    return wide.mul(mean.add_(eps).rsqrt_()).mul_(weight).to(x.dtype)


def rotary_tables(
    theta: float, scaling: Mapping[str, Any] | None, head_dim: int, positions: Tensor, max_positions: int
) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[P, head_dim]``, float32, of transformers' own RoPE variants.

    ``scaling`` is spelled as in a config's ``rope_scaling`` or ``rope_parameters``. Text has one position
    axis, so multi-axis scaling (``mrope_section``) is plain rotary, as in SGLang's ``LlamaModel``.
    """
    items = [(key, tuple(value) if isinstance(value, list) else value) for key, value in (scaling or {}).items()]
    rotary = _rotary(float(theta), tuple(items), head_dim, max_positions)
    cos, sin = rotary.to(positions.device)(torch.zeros(1, device=positions.device), positions[None])
    return cos[0], sin[0]  # [P, D]


@lru_cache(maxsize=16)
def _rotary(theta: float, scaling: tuple[tuple[str, Any], ...], head_dim: int, max_positions: int) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {key: list(value) if isinstance(value, tuple) else value for key, value in scaling}
    kind = rope.pop("type", "default")
    kind = "default" if "mrope_section" in rope else rope.get("rope_type", kind)
    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, max_position_embeddings=max_positions,
        rope_parameters=rope | {"rope_type": kind, "rope_theta": theta},
    )  # fmt: skip
    try:
        return LlamaRotaryEmbedding(config)
    except KeyError as error:
        raise InputError(
            "rope_scaling", rope, "a scaling known to transformers, with its fields",
            f"name or complete it: {error} is not known or not there",
        ) from error  # fmt: skip


def apply_rotary_pos_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``x [S, heads, D]`` by ``cos, sin [S, D]``, halves paired as in Llama."""
    out = x * cos[:, None]
    (left, right), (low, high) = x.chunk(2, dim=-1), sin[:, None].chunk(2, dim=-1)
    out_left, out_right = out.chunk(2, dim=-1)
    out_left.addcmul_(right, low, value=-1)
    out_right.addcmul_(left, high)
    return out.to(x.dtype)


def chain_attention(
    q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], first: int, window: int | None = None
) -> Tensor:
    """Attention at depth ``len(keys)``, with fused kernels and no mask over all keys: ``[S, heads, D]``.

    ``q [S, heads, D]`` are the queries of rows ``first .. first + S - 1``. ``keys[0] [R, kv_heads, D]``
    belong to depth 1 and form the causal prefix: row t sees rows ``0..t``, or the last ``window`` of them.
    ``keys[1:]``, each ``[S, kv_heads, D]``, belong to depths 2 and later: a query sees of each only the key
    of its own chain.

    The prefix is attended to by a fused kernel that also gives the log of its softmax's denominator. Any
    other part of the same softmax can then be merged in: the chain's own keys are a small dense part.
    """
    if window is None:
        parts = [_attend(q, keys[0][first : first + len(q)], values[0][first : first + len(q)], causal=True)]
        if first:
            parts.append(_attend(q, keys[0][:first], values[0][:first]))
    else:
        parts = [_windowed(q, keys[0], values[0], first, window)]
    if len(keys) == 1:
        return merge_attention_states(parts).to(q.dtype)
    merged, size = [], 256 if q.device.type == "cpu" else len(q)  # rows at a time: what a core's cache holds
    for start in range(0, len(q), size):
        rows = slice(start, start + size)
        own = _own_chain(q[rows], [k[rows] for k in keys[1:]], [v[rows] for v in values[1:]])
        merged.append(merge_attention_states([*((out[rows], log[rows]) for out, log in parts), own]).to(q.dtype))
    return torch.cat(merged)


def _own_chain(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention of each row to one key a depth, as one batch of small products: no head's key is copied."""
    k, v = torch.stack(tuple(keys), 2).float(), torch.stack(tuple(values), 2).float()  # [S, kv_heads, depths, D]
    grouped = q.float().unflatten(1, (k.shape[1], -1)) * q.shape[2] ** -0.5  # [S, kv_heads, group, D]
    scores = grouped @ k.mT  # [S, kv_heads, group, depths]
    return (scores.softmax(-1) @ v).flatten(1, 2), scores.logsumexp(-1).flatten(1, 2)


def merge_attention_states(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """One softmax from disjoint parts, each ``(output [S, heads, D], log of its denominator [S, heads])``."""
    if len(parts) == 1:
        return parts[0][0]
    shares = torch.softmax(torch.stack([log for _, log in parts]), dim=0)
    merged = parts[0][0] * shares[0, ..., None]
    for (out, _), share in zip(parts[1:], shares[1:], strict=True):
        merged = torch.addcmul(merged, out.to(merged.dtype), share[..., None])
    return merged


def _windowed(q: Tensor, k: Tensor, v: Tensor, first: int, window: int) -> tuple[Tensor, Tensor]:
    """The causal prefix within a window, by blocks of queries: each mask is a block by its own keys."""
    parts = []
    for start in range(0, len(q), 256):
        stop = min(start + 256, len(q))
        rows = torch.arange(first + start, first + stop, device=q.device)
        oldest = max(0, first + start + 1 - window)
        seen = torch.arange(oldest, first + stop, device=q.device)
        distance = rows[:, None] - seen[None]
        bias = torch.zeros(distance.shape, dtype=q.dtype, device=q.device)
        bias.masked_fill_((distance < 0) | (distance >= window), float("-inf"))
        parts.append(_attend(q[start:stop], k[oldest : first + stop], v[oldest : first + stop], bias=bias))
    outs, logs = zip(*parts, strict=True)
    return torch.cat(outs), torch.cat(logs)


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Fused attention that returns its output ``[S, heads, D]`` and log-denominator ``[S, heads]``.

    These are the operators behind ``scaled_dot_product_attention``, which hides the second result.
    """
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # [1, heads, rows, D]
    if q.device.type == "cpu":
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, log = fused(q, k, v, 0.0, causal, attn_mask=None if bias is None else bias[None, None])
    elif bias is None and q.dtype in (torch.float16, torch.bfloat16):
        fused = torch.ops.aten._scaled_dot_product_flash_attention
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        out, log = fused(q, k, v, 0.0, causal)[:2]
    else:
        out, log = _dense(q, k, v, causal, bias)
    return out[0].transpose(0, 1), log[0].transpose(0, 1)


def _dense(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention by plain matrix products, for devices and dtypes without a fused kernel."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if causal:
        scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu_(1), float("-inf"))
    log = scores.logsumexp(-1)
    return (scores - log[..., None]).exp().to(v.dtype) @ v, log


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """SwiGLU MLP (Shazeer 2020): ``down(silu(gate x) * up x)``."""
    return F.linear(F.silu(F.linear(x, gate), inplace=True).mul_(F.linear(x, up)), down)


def lm_head_logits(x: Tensor, weight: Tensor, out: Tensor | None = None, values: int = 1 << 26) -> Tensor:
    """``[S, V]`` in the dtype of ``x [S, H]``; ``weight [V, H]`` of another dtype is cast ``values`` values at a time.

    So that no copy of a large head is made only to compute in another precision.
    """
    out = x.new_empty(len(x), len(weight)) if out is None else out
    if weight.dtype == x.dtype or weight.numel() <= values:
        return torch.mm(x, weight.to(x.dtype).T, out=out)
    size = max(1, values // weight.shape[1])
    for logits, block in zip(out.split(size, 1), weight.split(size), strict=True):
        logits.copy_(torch.mm(x, block.to(x.dtype).T))
    return out


def lm_head_argmax(x: Tensor, weight: Tensor, rows: int = 512) -> tuple[Tensor, Tensor]:
    """The best draft id and the gap between the two best logits, for ``x [S, H]`` and ``weight [V_d, H]``.

    Logits exist for ``rows`` positions at a time only. Returns int64 ``[S]`` and float32 ``[S]``.
    """
    logits = x.new_empty(min(rows, len(x)), len(weight))  # one buffer for all parts: fresh memory is slow
    found = [_two_best(lm_head_logits(part, weight, logits[: len(part)])) for part in x.split(rows)]
    best, gaps = zip(*found, strict=True)
    return torch.cat(best), torch.cat(gaps)


def _two_best(logits: Tensor, size: int = 64) -> tuple[Tensor, Tensor]:
    """``topk(2)`` as index of the best ``[S]`` and gap ``[S]``, by blocks: a maximum is far cheaper than a sort.

    The two best are in the two blocks with the largest maxima.
    """
    if rest := -logits.shape[1] % size:
        logits = F.pad(logits, (0, rest), value=float("-inf"))
    blocks = logits.unflatten(1, (-1, size))
    chosen = blocks.amax(-1).topk(min(2, blocks.shape[1])).indices  # [S, 2]
    values, place = blocks[torch.arange(len(blocks), device=logits.device)[:, None], chosen].flatten(1).topk(2)
    best = chosen.gather(1, place[:, :1] // size) * size + place[:, :1] % size
    return best[:, 0], (values[:, 0].float() - values[:, 1].float())
