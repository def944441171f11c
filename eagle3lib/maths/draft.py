"""The forward pass of an EAGLE-3 draft over one conversation.

Row t pairs the target's state after token t with the embedding of token t + 1 and, at depth 1, proposes
token t + 2. At depth d the draft reads its own previous state and the embedding of the true token t + d: as long as
a chain is right, that is the token it drafted itself, and after its first wrong token a chain no longer counts. So all
rows are computed side by side.

Paper: Li et al. 2025, arXiv 2503.01840. Order of operations, rotary positions (row t at depth d sits at
t + d - 1) and residuals follow SGLang, ``srt/models/llama_eagle3.py`` and
``srt/speculative/eagle_worker_v2.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.draft_weights import Draft, Layer, Linear, embed, head_weight, require, target_ids
from eagle3lib.maths.kernels import (
    apply_rotary_pos_emb,
    chain_attention,
    gated_mlp,
    lm_head_argmax,
    rms_norm,
    rotary_tables,
)
from eagle3lib.maths.mla import yarn_rope_scaling
from eagle3lib.maths.wiring import Wiring

#: Called with the name and the value of each stage of the forward pass, as it is computed.
OnStage = Callable[[str, Tensor], None]

#: Attention over the keys that each row sees: rotated ``q [S, heads, D]``, ``k`` and ``v [rows, kv_heads, D]``, to
#: ``[S, heads, D]``.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Chains:
    """What the draft proposes from many starts at once, on the CPU.

    ``starts [S]``: start t knows token t + 1. ``proposed [depths, S]``: target ids for tokens t + 2 and on.
    ``margins [depths, S]``: gap between the two best logits.
    """

    proposed: Tensor
    starts: Tensor
    margins: Tensor

    def right(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """``(right, known)``, bool ``[depths, S]``: equal to the true token; whether the conversation has one there."""
        depths = torch.arange(1, len(self.proposed) + 1, device=self.starts.device)
        index = self.starts + 1 + depths[:, None]  # [depths, S]
        known = index < len(tokens)
        truth = tokens.to(index.device)[index.clamp(max=len(tokens) - 1)]
        return (self.proposed == truth) & known, known

    def runs(self, tokens: Tensor, num_steps: int) -> tuple[Tensor, Tensor]:
        """``(runs, sure)``, both ``[S]``: how many of ``num_steps`` drafts are right until the first wrong one; whether
        the conversation is long enough to know.
        """
        if not 1 <= num_steps <= len(self.proposed):
            raise InputError("num_steps", num_steps, f"1 to {len(self.proposed)}, the depths that were computed")
        right, _ = self.right(tokens)
        runs = right[:num_steps].long().cumprod(0).sum(0)
        return runs, (runs == num_steps) | (self.starts + 2 + runs < len(tokens))


@torch.inference_mode()
def forward(draft: Draft, wiring: Wiring, states: Tensor, tokens: Tensor, depths: int, first: int = 0) -> Chains:
    """Draft ``depths`` tokens from every start of one sample.

    Args:
        states: ``[T, K, H_t]``, the aux states at ``wiring.boundaries``, in their order.
        tokens: ``[T]`` token ids.
        first: the first start to draft from; earlier rows serve as context only.

    Raises:
        InputError: shapes do not fit, or the wiring asks for weights that the draft does not have.
    """
    weight, ids = head_weight(draft, wiring), target_ids(draft, wiring)
    hidden = combine(draft, wiring, states)
    proposed, margins = [], []
    for state in depth_states(draft, wiring, hidden, tokens, depths, first):
        best, margin = lm_head_argmax(before_head(draft, wiring, state), weight)
        proposed.append(best if ids is None else ids[best])
        margins.append(margin)
    starts = torch.arange(first, first + len(proposed[0]))
    return Chains(torch.stack(proposed).cpu(), starts, torch.stack(margins).cpu())


def combine(draft: Draft, wiring: Wiring, states: Tensor, on_stage: OnStage = lambda name, value: None) -> Tensor:
    """The captured states as one hidden state a row: ``[T, K, H_t]`` to ``[T, H]``."""
    count = draft.num_aux_hidden_states
    if states.dim() != 3 or states.shape[1] != count or len(wiring.boundaries) != count:
        found = f"states {list(states.shape)} for boundaries {list(wiring.boundaries)}"
        raise InputError("states", found, f"[tokens, {count}, width] and {count} boundaries, as fc reads")
    if states.shape[2] * count != draft.fc.weight.shape[1]:
        raise InputError("states", f"width {states.shape[2]}", f"width {draft.fc.weight.shape[1] // count}")
    x = states.to(draft.norm.device, draft.norm.dtype)  # [T, K, H_t]
    on_stage("captured states", x.flatten(1))
    if wiring.fc_norm:
        norms = require(draft.fc_norms, "fc_norm", "fc_norm.*.weight")
        x = torch.stack([rms_norm(x[:, k], norm, draft.eps) for k, norm in enumerate(norms)], 1)
    x = x.flatten(1)  # [T, K * H_t]
    if wiring.norm_before_fc:
        x = rms_norm(x, require(draft.input_norm, "norm_before_fc", "input_norm.weight"), draft.eps)
    x = draft.fc(x)  # [T, H]
    on_stage("fc", x)
    return x


@dataclass
class KVCache:
    """Keys and values of one layer: ``[0]`` for all rows at depth 1, then one entry a depth."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def append(self, k: Tensor, v: Tensor) -> None:
        self.keys.append(k)
        self.values.append(v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, first: int, window: int | None) -> Tensor:
        """Attention of this depth's queries, of rows ``first`` and on, after its keys and values are added."""
        self.append(k, v)
        return chain_attention(q, self.keys, self.values, first, window)


@torch.inference_mode()
def depth_states(
    draft: Draft, wiring: Wiring, hidden: Tensor, tokens: Tensor, depths: int, first: int = 0,
    on_stage: OnStage = lambda name, value: None, kv_caches: list[KVCache] | None = None,
) -> Iterator[Tensor]:  # fmt: skip
    """The draft's state ``[S, H]``, before the final norm, at depths 1 to ``depths``.

    ``hidden [T, H]`` is ``combine``'s. Rows ``first .. T - 2`` are given, less those that a negative
    ``wiring.shift`` leaves without a state. ``kv_caches``, one a layer, are filled here: a tree goes on from them.
    """
    tokens = torch.as_tensor(tokens, device=hidden.device)
    if len(hidden) != len(tokens):
        raise InputError("states", f"{len(hidden)} rows for {len(tokens)} tokens", "as many rows as tokens")
    rows = rows_of(tokens, wiring)
    if not 0 <= first < rows:
        raise InputError("start", first, f"0 to {rows - 1}: there are {len(tokens)} tokens")
    hidden = _shifted(hidden, wiring.shift)[:rows]
    cos, sin = rotary(draft, wiring, torch.arange(rows + depths, device=hidden.device))
    kv_caches = [KVCache() for _ in draft.layers] if kv_caches is None else kv_caches
    start = 0  # the first row that is computed: all rows at depth 1, those from ``first`` on later
    for depth in range(1, depths + 1):
        index = torch.arange(start + depth, rows + depth, device=hidden.device)
        embeds = embed(draft, wiring, tokens[index.clamp(max=len(tokens) - 1)])  # [rows, H]
        on_stage("embedding", embeds)
        cos_sin = (cos[start + depth - 1 : rows + depth - 1], sin[start + depth - 1 : rows + depth - 1])
        for i, cache in enumerate(kv_caches):
            skip = first - start if i == len(kv_caches) - 1 else 0  # rows of which only the keys are needed
            attend = partial(cache.attend, first=start + skip, window=wiring.window)
            hidden = decoder_layer(draft, wiring, i, embeds, hidden, cos_sin, attend, skip, on_stage)  # [S, H]
        start = first
        yield hidden
        if wiring.norm_output:
            hidden = rms_norm(hidden, draft.norm, draft.eps)


def rows_of(tokens: Tensor, wiring: Wiring) -> int:
    """How many starts a conversation has: rows with a state and a next token."""
    return len(tokens) - 1 + min(wiring.shift, 0)


def rotary(draft: Draft, wiring: Wiring, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[P, D]`` at these positions; ``D`` is how much of a head is rotated."""
    mla, width, scaling = draft.layers[0].mla, draft.head_dim, wiring.rope_scaling
    if mla is not None:
        width, scaling = mla.shape.rope, yarn_rope_scaling(scaling)
    return rotary_tables(wiring.rope_theta, scaling, width, positions, draft.max_positions)


def decoder_layer(
    draft: Draft, wiring: Wiring, i: int, embeds: Tensor, hidden: Tensor, cos_sin: tuple[Tensor, Tensor],
    attend: Attend, skip: int = 0, on_stage: OnStage = lambda name, value: None,
) -> Tensor:  # fmt: skip
    """Layer ``i``: ``[rows, H]`` to ``[rows - skip, H]``; the first ``skip`` rows give keys and values only."""
    layer = draft.layers[i]
    inputs, residual = _layer_input(draft, wiring, layer, embeds if i == 0 else None, hidden, on_stage)
    heads = attend(*_qkv(draft, wiring, layer, inputs, skip, cos_sin, on_stage))  # [S, heads, D]
    attention = heads[..., : layer.value_dim].flatten(1)  # [S, heads * value_dim]
    on_stage("attention", attention)
    hidden = residual[skip:] + layer.o_proj(attention)  # [S, H]
    on_stage("residual", hidden)
    inner = rms_norm(hidden, layer.post_attention_layernorm, draft.eps)
    hidden = hidden + gated_mlp(inner, layer.gate_proj, layer.up_proj, layer.down_proj)
    on_stage("mlp", hidden)
    return hidden


def _layer_input(
    draft: Draft, wiring: Wiring, layer: Layer, embeds: Tensor | None, hidden: Tensor, on_stage: OnStage
) -> tuple[Tensor, Tensor]:
    """What attention reads, and what its output is added to.

    The first layer reads the token and the state side by side, ``2H`` wide; its q, k and v are that wide,
    its output projection brings back ``H``, so that the residual is the state alone.
    """
    if embeds is None:
        norm = layer.hidden_norm if wiring.later_norm == "hidden_norm" else layer.input_layernorm
        return rms_norm(hidden, require(norm, "later_norm", wiring.later_norm), draft.eps), hidden
    e = rms_norm(embeds, require(layer.input_layernorm, "the first layer", "input_layernorm.weight"), draft.eps)
    g = rms_norm(hidden, require(layer.hidden_norm, "the first layer", "hidden_norm.weight"), draft.eps)
    on_stage("input_layernorm", e)
    on_stage("hidden_norm", g)
    x = torch.cat([e, g], dim=-1)  # [rows, 2H]
    on_stage("concatenation", x)
    return x, g if wiring.norm_before_residual else hidden


def _qkv(
    draft: Draft, wiring: Wiring, layer: Layer, x: Tensor, skip: int, cos_sin: tuple[Tensor, Tensor], on_stage: OnStage
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries of the rows after ``skip`` ``[S, heads, D]``, rotated keys and values of all rows."""
    if layer.mla is not None:
        q, k, v = layer.mla.qkv(x, skip, cos_sin, draft.eps, wiring.rope_scaling)
        for name, value in (("latent q", q), ("latent k", k), ("latent v", v)):
            on_stage(name, value.flatten(1))
        return q, k, v

    def project(linear: Linear, x: Tensor) -> Tensor:
        bias = require(linear.bias, "attention_bias", "q, k and v biases") if wiring.attention_bias else None
        return F.linear(x, linear.weight, bias).unflatten(-1, (-1, draft.head_dim))

    q, k, v = project(layer.q_proj, x[skip:]), project(layer.k_proj, x), project(layer.v_proj, x)
    if wiring.qk_norm:
        q = rms_norm(q, require(layer.q_norm, "qk_norm", "q_norm.weight"), draft.eps)
        k = rms_norm(k, require(layer.k_norm, "qk_norm", "k_norm.weight"), draft.eps)
    for name, value in (("q", q), ("k", k), ("v", v)):
        on_stage(name, value.flatten(1))
    cos, sin = cos_sin
    return apply_rotary_pos_emb(q, cos[skip:], sin[skip:]), apply_rotary_pos_emb(k, cos, sin), v


def before_head(draft: Draft, wiring: Wiring, state: Tensor) -> Tensor:
    """What the head reads: the state ``[..., H]``, after the final norm where the wiring has it."""
    return rms_norm(state, draft.norm, draft.eps) if wiring.norm_before_head else state


def _shifted(hidden: Tensor, shift: int) -> Tensor:
    """Row t gets the state of row ``t - shift``; rows before the first state are zero."""
    if shift > 0:
        return F.pad(hidden, (0, 0, shift, 0))[: len(hidden)]
    return hidden[-shift:]
