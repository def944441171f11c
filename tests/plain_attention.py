"""Attention over a prefix and a chain's own keys, written to be easy to check."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def plain_chain_attention(
    q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], first: int, window: int | None = None
) -> Tensor:
    """What ``kernels.chain_attention`` computes, one query and one head at a time."""
    group = q.shape[1] // keys[0].shape[1]  # query heads that share a key head
    out = torch.empty_like(q)
    for i in range(q.shape[0]):
        row = first + i
        oldest = 0 if window is None else max(0, row + 1 - window)
        k = torch.cat([keys[0][oldest : row + 1], *(deeper[i : i + 1] for deeper in keys[1:])])
        v = torch.cat([values[0][oldest : row + 1], *(deeper[i : i + 1] for deeper in values[1:])])
        for head in range(q.shape[1]):
            scores = k[:, head // group] @ q[i, head] * q.shape[2] ** -0.5
            out[i, head] = torch.softmax(scores, dim=0) @ v[:, head // group]
    return out
