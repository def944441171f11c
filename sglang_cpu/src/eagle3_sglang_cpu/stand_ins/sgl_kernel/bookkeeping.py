"""Which cache slot holds which token. All write into tensors that SGLang gives them.

Twins, unless said otherwise: the Triton kernels of the same names without ``_cpu`` in ``sglang/kernels/ops``.
``req_to_token[r, p]`` is the slot of position ``p`` of request ``r``; ``pool_len`` is its width.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Enter newly allocated slots ``out_cache_loc`` at positions start to end of each request."""
    at = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start]
        at += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Look up the slots of positions start to end of each request, packed into ``out_cache_loc``."""
    at = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[at : at + end - start] = req_to_token[row, start:end]
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Look up the ``topk * num_steps`` slots after each request's verified tokens."""
    ends = seq_lens + topk * num_steps
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, ends, out_cache_loc, pool_len)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """A table like ``req_to_token`` with a row for each of the ``topk`` branches of each request.

    A row holds the verified tokens' slots, then those of the branch, which stands ``branch * num_steps``
    further on in ``req_to_token``. Twin: ``generate_draft_decode_kv_indices`` (``page_size`` 1).

    Returns:
        ``[B * topk, pool_len]`` of ``req_to_token``'s dtype.
    """
    rows = req_to_token[req_pool_indices, :pool_len].repeat_interleave(topk, 0)
    for i, length in enumerate(seq_lens.tolist()):
        for branch in range(1, topk):
            row, source = rows[i * topk + branch], length + branch * num_steps
            row[length : length + num_steps] = row[source : source + num_steps]
    return rows


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """The last accepted token of each request; ``accept_lens`` ``[B]`` counts the bonus token."""
    batch = accept_lens.shape[0]
    rows = accept_tokens.view(-1)[: batch * accept_stride].view(batch, accept_stride)
    bonus_tokens.copy_(rows.gather(1, accept_lens.long()[:, None] - 1)[:, 0])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """The slots of the accepted nodes, packed; -1 in ``accept_index`` is not accepted."""
    accepted = accept_index[accept_index > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's tokens left by one; its new token comes last, or at ``select_index`` if given."""
    starts, lengths = extend_start_loc.tolist(), extend_seq_lens.tolist()
    for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if length == 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        last = start + length - 1 if select_index is None else int(select_index.view(-1)[i])
        input_ids[last] = topk_index.view(-1)[i]


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Move the slots ``src_loc`` to ``tgt_loc`` in every layer's key and value buffer; the two may overlap.

    Args:
        data_ptrs: the buffers' addresses; ``strides``: bytes a slot.
    """
    if not src_loc.numel():
        return
    slots = int(torch.maximum(src_loc.max(), tgt_loc.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[tgt_loc] = buffer[src_loc]


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> list[tuple[int, int, int]]:
    return list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))
