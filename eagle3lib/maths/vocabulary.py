"""The two ends of a draft, where tokens come in and go out: embedding, head, and the map between vocabularies."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.draft_weights import Draft
from eagle3lib.maths.wiring import Wiring

Weight = TypeVar("Weight")


def head_weight(draft: Draft, wiring: Wiring) -> Tensor:
    """``[V_d, H]``: the draft's own head, the embedding's first rows where they are tied, or the target's."""
    if wiring.head == "tied":
        return embedding_table(draft, wiring)[: draft.draft_vocab]
    if wiring.head == "target":
        return _as_wide(have(draft.target_head, "head", "head of the target"), draft, "head")
    return have(draft.lm_head, "the head", "lm_head.weight")


def target_ids(draft: Draft, wiring: Wiring) -> Tensor | None:
    """The target id of each draft id, ``[V_d]``; ``None`` where they are the same.

    Raises:
        InputError: the map has not one entry for each row of the head.
    """
    if draft.d2t is None:
        return None
    if len(draft.d2t) != (rows := len(head_weight(draft, wiring))):
        cure = "export head and d2t from one checkpoint"
        raise InputError("d2t", f"{len(draft.d2t)} entries", f"{rows}, one for each row of the head", cure)
    if wiring.d2t == "absolute":
        return draft.d2t
    return draft.d2t + torch.arange(len(draft.d2t), device=draft.d2t.device)


def embed(draft: Draft, wiring: Wiring, tokens: Tensor) -> Tensor:
    """``[T, H]`` in the draft's dtype: rows are cast after they are taken, since the table may be of another."""
    return F.embedding(tokens, embedding_table(draft, wiring)).to(draft.norm.dtype)


def embedding_table(draft: Draft, wiring: Wiring) -> Tensor:
    if wiring.embedding == "own":
        return have(draft.own_embedding, "embedding", "embed_tokens.weight")
    return _as_wide(have(draft.target_embedding, "embedding", "the target's embedding"), draft, "embedding")


def _as_wide(table: Tensor, draft: Draft, what: str) -> Tensor:
    if table.shape[1] != draft.width:
        raise InputError(
            what, f"the target's, {table.shape[1]} wide", f"{draft.width} wide, as the draft",
            "a draft of another width than its target reads its own",
        )  # fmt: skip
    return table


def have(weight: Weight | None, switch: str, name: str) -> Weight:
    """The weight that a switch of the wiring needs; raises ``InputError`` where the draft lacks it."""
    if weight is None or (isinstance(weight, tuple) and not weight):
        raise InputError(f"wiring {switch}", f"no {name} in the draft", f"{name}, which this switch needs")
    return weight
