"""Attention over SGLang's paged key-value cache, one call of PyTorch's fused attention for a whole batch.

Registers ``torch.ops.sgl_kernel.extend_attention_cpu`` and ``decode_attention_cpu``, which
``srt/layers/attention/intel_amx_backend.py`` looks up. The cache is a pool of slots ``[S, Hk, D]``;
``req_to_token[r, p]`` is the slot of position ``p`` of request ``r``.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EXTEND = """extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o,
    Tensor k_buffer, Tensor v_buffer, float k_scale, float v_scale,
    Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens,
    Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend,
    float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window_size,
    Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, bool is_causal) -> ()"""

_DECODE = """decode_attention_cpu(Tensor q, Tensor(a!) k_buffer, Tensor(b!) v_buffer,
    float k_scale, float v_scale, Tensor(c!) o, Tensor? k, Tensor? v, Tensor loc, Tensor attn_logits,
    Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens,
    float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window_size,
    Tensor? encoder_lens, Tensor? sinks) -> ()"""


def extend_attention_cpu(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Attention of the newest ``extend_seq_lens[i]`` tokens of each request: prefill and verification.

    The new keys and values are already in the cache. ``seq_lens`` counts the new tokens. Twin on a GPU:
    ``extend_attention_fwd`` in ``triton_ops/extend_attention.py``.

    Args:
        q: ``[T, H, D]``, requests one after the other. ``o`` of the same rows is written.
        tree_mask: bool, ``[B * m * m]`` flat (``TreeMaskMode.QLEN_ONLY``): which of the ``m`` draft tokens
            each of them may see; all of them see the tokens before.
    """
    _refuse(k_buffer, logit_cap, is_cross_attn, encoder_lens, sinks)
    window = sliding_window_size
    lengths = extend_seq_lens.tolist()
    new = lengths[0]
    if all(length == new for length in lengths):
        tree = None if tree_mask is None else _tree(tree_mask, len(lengths), new)
        slots, mask = _visible(req_to_token, req_pool_indices, seq_lens, new, window, is_causal, tree)
        _attend(q, o, k_buffer, v_buffer, slots, mask, sm_scale)
        return
    if tree_mask is not None:
        raise NotImplementedError("sgl_kernel stand-in: a draft tree with requests of different sizes")
    for i, (start, new) in enumerate(zip(extend_start_loc.tolist(), lengths, strict=True)):
        if new:
            one, rows = slice(i, i + 1), slice(start, start + new)
            slots, mask = _visible(req_to_token, req_pool_indices[one], seq_lens[one], new, window, is_causal)
            _attend(q[rows], o[rows], k_buffer, v_buffer, slots, mask, sm_scale)


def decode_attention_cpu(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    o: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Store the newest token's key and value at slot ``loc`` and attend from it, one token a request.

    Twin on a GPU: ``decode_attention_fwd`` in ``triton_ops/decode_attention.py``. ``attn_logits`` is scratch
    memory of the compiled kernel.
    """
    _refuse(k_buffer, logit_cap, is_cross_attn, encoder_lens, sinks)
    if k is not None and v is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    slots, mask = _visible(req_to_token, req_pool_indices, seq_lens, 1, sliding_window_size, True)
    _attend(q, o, k_buffer, v_buffer, slots, mask, sm_scale)


def _visible(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    new: int,
    window: int,
    is_causal: bool,
    tree: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The slots of each request's tokens ``[B, N]`` and which of them each new token sees ``[B, 1, new, N]``.

    Shorter requests are padded to the longest one with slots that no token sees. Without a mask all
    see all.
    """
    longest = int(seq_lens.max())
    slots = req_to_token[req_pool_indices, :longest]  # [B, N]
    if new == 1 and window <= 0 and len(seq_lens) == 1:
        return slots, None
    key = torch.arange(longest)
    end = seq_lens[:, None, None]  # [B, 1, 1]
    query = end - new + torch.arange(new)[:, None]  # [B, new, 1]
    last = query if is_causal and tree is None else end - 1
    mask = key <= last  # [B, new or 1, N]
    if window > 0:
        mask = mask & (key > query - window)
    if tree is not None:
        among = key - (end - new)  # [B, 1, N]: which of the new tokens, negative for those before
        allowed = tree.gather(2, among.clamp(0, new - 1).expand(-1, new, -1))
        mask = mask & (allowed | (among < 0))
    return slots, mask[:, None]


def _attend(
    q: Tensor, o: Tensor, k_buffer: Tensor, v_buffer: Tensor, slots: Tensor, mask: Tensor | None, scale: float
) -> None:
    batch, length = slots.shape
    flat = slots.reshape(-1)
    keys = k_buffer.index_select(0, flat).unflatten(0, (batch, length)).transpose(1, 2)  # [B, Hk, N, D]
    values = v_buffer.index_select(0, flat).unflatten(0, (batch, length)).transpose(1, 2)
    queries = q.unflatten(0, (batch, -1)).transpose(1, 2)  # [B, H, new, D]
    seen = torch.nn.functional.scaled_dot_product_attention(
        queries, keys.to(q.dtype), values.to(q.dtype), attn_mask=mask, scale=scale, enable_gqa=True
    )
    o.unflatten(0, (batch, -1)).copy_(seen.transpose(1, 2))


def _tree(tree_mask: Tensor, batch: int, new: int) -> Tensor:
    """The flat mask as ``[B, new, new]``."""
    if tree_mask.numel() != batch * new * new:
        raise NotImplementedError(
            f"sgl_kernel stand-in: found a tree mask of {tree_mask.numel()} elements, expected "
            f"{batch} x {new} x {new} (TreeMaskMode.QLEN_ONLY); serve with an EAGLE algorithm"
        )
    return tree_mask.view(batch, new, new)


def _refuse(
    k_buffer: Tensor, logit_cap: float, is_cross_attn: bool, encoder_lens: Tensor | None, sinks: Tensor | None
) -> None:
    """Models beyond the dense Llama family get an error instead of a wrong answer."""
    unsupported = {
        "cross attention": is_cross_attn or encoder_lens is not None,
        "attention sinks": sinks is not None,
        "a logit cap": logit_cap > 0,
        f"a key-value cache of {k_buffer.dtype}": k_buffer.dtype.itemsize == 1,
    }
    found = [what for what, present in unsupported.items() if present]
    if found:
        raise NotImplementedError(
            f"sgl_kernel stand-in: found {', '.join(found)}, expected a dense Llama-family model with a "
            "16 or 32 bit cache; serve this model on a GPU"
        )


_library = torch.library.Library("sgl_kernel", "DEF")
for _schema, _function in ((_EXTEND, extend_attention_cpu), (_DECODE, decode_attention_cpu)):
    _library.define(_schema)
    _library.impl(_function.__name__, _function, "CPU")
