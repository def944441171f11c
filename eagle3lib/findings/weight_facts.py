"""What the values of a draft's weights show: broken numbers, the vocabulary map, copies of the target."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize

from eagle3lib.engine.loading import Loading
from eagle3lib.errors import InputError
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.draft_config import DraftConfig
from eagle3lib.reading.target_config import TargetConfig

#: Checkpoints of no more values are looked through whole; of larger ones, evenly spread rows of each tensor.
WHOLE, SAMPLE = 64 << 20, 1 << 17
#: Target heads of no more values are searched for the rows that a draft's head was made from.
SEARCHED, PROBES = 64 << 20, 32
LONGEST_MAP = 16 << 20
_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


@dataclass(frozen=True)
class WeightFacts:
    """Facts from values.

    ``broken``: by fault, (tensor, bad values, values seen) of each tensor that has it. ``ones``: norms of ones alone.
    ``vocab``: what is wrong with the vocabulary map, as the suffix of ``vocab.map`` and the evidence. ``embed_error``
    and ``head_error``: relative differences of the draft's own to what the engine puts in its place, ``None`` where it
    keeps them or they were not compared. ``head_matches`` counts rows of the head: those whose nearest row in the
    target's head is the mapped one, those that stem from the target's, those probed.
    """

    broken: Mapping[str, Sequence[tuple[str, int, int]]] = field(default_factory=dict)
    ones: tuple[str, ...] = ()
    vocab: tuple[tuple[str, str], ...] = ()
    map_length: int | None = None
    head_rows: int | None = None
    embed_error: float | None = None
    head_error: float | None = None
    head_matches: tuple[int, int, int] | None = None


def weight_facts(
    draft: DraftConfig, target: TargetConfig | None, checkpoint: Checkpoint | None, loading: Loading | None,
    target_weights: Checkpoint | None,
) -> WeightFacts:  # fmt: skip
    """Look through a draft's weights; the target's are used for two comparisons where they are at hand."""
    if checkpoint is None:
        return WeightFacts()
    broken, ones = _values(draft, checkpoint)
    d2t = _map(checkpoint, loading.d2t if loading else None, "d2t")
    t2d = _map(checkpoint, loading.t2d if loading else None, "t2d")
    head = checkpoint.find("lm_head.weight")
    rows = head.shape[0] if head and head.shape else None
    faults = tuple(_vocab(draft, d2t, t2d, target.vocab_size if target else draft.vocab_size))
    embed_error = head_error = matches = None
    if target_weights and draft.shares_embedding:
        embed_error = _difference(checkpoint, target_weights, "embed_tokens.weight")
    if target_weights and not draft.tied and draft.draft_vocab_size is None:
        head_error = _difference(checkpoint, target_weights, "lm_head.weight")
    if target_weights and d2t is not None and not faults and head and len(head.shape) == 2 and rows == len(d2t):
        matches = _head_matches(checkpoint, head.name, d2t, target_weights)
    length = None if d2t is None else d2t.numel()
    return WeightFacts(broken, tuple(ones), faults, length, rows, embed_error, head_error, matches)


def _values(draft: DraftConfig, checkpoint: Checkpoint) -> tuple[dict[str, list[tuple[str, int, int]]], list[str]]:
    floats = [t for t in checkpoint.tensors.values() if t.dtype in _FLOATS]
    whole = sum(torch.Size(t.shape).numel() for t in floats) <= WHOLE
    broken, ones = defaultdict(list), []
    for info in floats:
        if info.name.endswith("embed_tokens.weight") and draft.shares_embedding:
            continue  # the engine puts the target's in its place
        x = checkpoint.sample(info.name, None if whole else SAMPLE)
        x = x.float() if info.dtype.startswith("F8") else x
        if not x.numel():
            continue
        low, high = (float(v) for v in x.aminmax())  # NaN if any value is
        if not (math.isfinite(low) and math.isfinite(high)):
            broken["NaN or infinite"].append((info.name, int((~x.isfinite()).sum()), x.numel()))
        elif low == high and x.numel() > 1 and "bias" not in info.name and "scale" not in info.name:
            if low == 1 and x.ndim == 1:
                ones.append(info.name)
            else:
                broken[f"all {low:g}"].append((info.name, x.numel(), x.numel()))
    return broken, ones


def _map(checkpoint: Checkpoint, name: str | None, ending: str) -> Tensor | None:
    info = checkpoint.tensors[name] if name else checkpoint.find(ending)
    if info and torch.Size(info.shape).numel() > LONGEST_MAP:
        raise InputError(f"{info.file}: {info.name}", f"shape {list(info.shape)}", "one entry per token id")
    return checkpoint.tensor(info.name) if info else None


def _vocab(draft: DraftConfig, d2t: Tensor | None, t2d: Tensor | None, vocab: int | None) -> Iterator[tuple[str, str]]:
    """What is wrong with a draft's vocabulary map: ``target id = draft id + d2t[draft id]``."""
    if d2t is None:
        if draft.reduced:
            kept = f"draft_vocab_size {draft.draft_vocab_size:,} of {draft.vocab_size:,}"
            yield "missing", f"{kept}, and no d2t in the weights: draft id i is taken for target id i"
        return
    if d2t.ndim != 1 or d2t.dtype.is_floating_point or d2t.dtype == torch.bool:
        yield "dtype", f"d2t is {d2t.dtype} of shape {list(d2t.shape)}, not a list of integer offsets"
        return
    size = len(d2t)
    if draft.draft_vocab and size != draft.draft_vocab:
        yield "length", f"d2t has {size:,} entries, the config has draft_vocab_size {draft.draft_vocab:,}"
    ids = d2t.long() + torch.arange(size)
    if t2d is not None and (t2d.ndim != 1 or vocab and len(t2d) != vocab):
        yield "t2d", f"t2d is of shape {list(t2d.shape)}, the target's vocabulary has {vocab or 0:,}"
        t2d = None
    member = None if t2d is None else t2d != 0
    out = int(((ids < 0) | (ids >= vocab)).sum()) if vocab else 0
    if _absolute(d2t.long(), ids, member, vocab):
        left = f"{out:,} of {size:,} draft ids leave the vocabulary of {vocab or 0:,}"
        yield "absolute", f"d2t holds target ids (largest {int(d2t.max()):,}), not offsets: {left}"
        return
    if out:
        yield "range", f"{out:,} of {size:,} draft ids map outside the vocabulary of {vocab:,}"
        return
    if double := size - len(ids.unique()):
        yield "duplicates", f"{double:,} of {size:,} draft ids map to a target id that another one has"
    if member is not None:
        marked, wrong = int(member.sum()), int((~member[ids]).sum())
        if wrong or marked != size:
            unmarked = f"{wrong:,} of those that d2t names are not marked"
            yield "t2d", f"t2d marks {marked:,} target ids, d2t has {size:,}; {unmarked}"
    elif draft.reduced and not bool(d2t.any()):
        meant = f"the draft would mean the first {size:,} target ids"
        yield "zero", f"all {size:,} offsets are 0, as before any map is made: {meant}"


def _absolute(d2t: Tensor, ids: Tensor, member: Tensor | None, vocab: int | None) -> bool:
    """True when the entries are target ids themselves and not offsets to them."""
    if not vocab or not len(d2t) or bool(((d2t < 0) | (d2t >= vocab)).any()) or len(d2t.unique()) < len(d2t):
        return False
    fits = bool((ids < vocab).all()) and (member is None or bool(member[ids].all()))
    return not fits and (member is None or bool(member[d2t].all()))


def _difference(checkpoint: Checkpoint, target: Checkpoint, name: str) -> float | None:
    own, theirs = checkpoint.find(name), target.find(name) or target.find("embed_tokens.weight")  # tied: no head
    if own is None or theirs is None:
        return None
    if own.shape != theirs.shape:
        return float("inf")
    a, b = checkpoint.sample(own.name, SAMPLE).float(), target.sample(theirs.name, SAMPLE).float()
    return float((a - b).norm() / b.norm().clamp(min=1e-12))


def _head_matches(checkpoint: Checkpoint, name: str, d2t: Tensor, target: Checkpoint) -> tuple[int, int, int] | None:
    """For some rows of the draft's head: which row of the target's head is nearest, by cosine?"""
    theirs = target.find("lm_head.weight") or target.find("embed_tokens.weight")
    own = checkpoint.info(name)
    if theirs is None or len(theirs.shape) != 2 or own.shape[1:] != theirs.shape[1:]:
        return None
    sizes = [torch.Size(shape).numel() for shape in (own.shape, theirs.shape)]
    ids = d2t.long() + torch.arange(len(d2t))
    if min(sizes) == 0 or max(sizes) > SEARCHED or int(ids.max()) >= theirs.shape[0]:
        return None
    head = checkpoint.tensor(name)
    rows = torch.linspace(0, len(d2t) - 1, min(PROBES, len(d2t))).round().long().unique()
    full = target.tensor(theirs.name)  # [V, H]
    centre = full[:: max(1, len(full) // 4096)].float().mean(0)  # rows of a head share a direction
    probe = normalize(head[rows].float() - centre, dim=-1)  # [P, H]
    # the nearest of V random directions has a cosine of about sqrt(2 ln V / H)
    chance = 1.5 * math.sqrt(2 * math.log(max(len(full), 2)) / full.shape[1])
    close = min(0.98, max(0.6, chance))
    named = (probe * normalize(full[ids[rows]].float() - centre, dim=-1)).sum(-1)
    if (named > close).float().mean() > 0.25:
        return (int((named > close).sum()),) * 2 + (len(rows),)
    nearest = [(probe @ normalize(part.float() - centre, dim=-1).T).amax(-1) for part in full.split(8192)]
    best = torch.stack(nearest).amax(0)  # [P]
    stem = best > close
    return int((stem & (named >= best - 1e-6)).sum()), int(stem.sum()), len(rows)
