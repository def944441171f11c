"""What a capture is held against: the target's states on the same tokens, and the boundaries trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.target import Target
from eagle3lib.measuring.streams import Boundary
from eagle3lib.reading.captures import Capture
from eagle3lib.reading.samples import Sample, read_samples


@dataclass(frozen=True)
class References:
    """States by boundary ``[P, H]`` for every capture, and the boundaries that reference files name."""

    states: tuple[Mapping[Boundary, Tensor], ...]
    named: tuple[int, ...] | None = None


def from_target(captures: Sequence[Capture], target: Target) -> References:
    """All boundaries of a target small enough to run here, and the last one after the final norm."""
    states: list[Mapping[Boundary, Tensor]] = []
    for capture in captures:
        rows = target.states(_tokens(capture))  # [P, n + 1, H]
        by_boundary: dict[Boundary, Tensor] = dict(enumerate(rows.unbind(1)))
        by_boundary["final_norm"] = target.normed(rows[:, -1]).cpu()
        states.append(by_boundary)
    return References(tuple(states))


def from_samples(
    captures: Sequence[Capture], path: str | Path, hidden: int, *, layers: int | None = None
) -> References:
    """States of the samples that begin with each capture's tokens: for a target too large to run here.

    ``layers``: the target's, so that a last state without the final norm has its boundary; else it is left out.
    """
    samples = list(read_samples(path, hidden))
    found = [_sample_of(capture, samples) for capture in captures]
    states: list[Mapping[Boundary, Tensor]] = []
    for sample in found:
        if sample.states is None or sample.boundaries is None:
            cure = "use the samples that the draft was trained on, with `boundaries` in their metadata"
            raise InputError(sample.name, "no states at named boundaries", "aux_hidden_states with boundaries", cure)
        by_boundary: dict[Boundary, Tensor] = dict(zip(sample.boundaries, sample.states.unbind(1), strict=True))
        if sample.last_hidden_state is not None:
            last = "final_norm" if sample.last_is_normed else layers
            if last is not None:
                by_boundary.setdefault(last, sample.last_hidden_state)
        states.append(by_boundary)
    return References(tuple(states), found[0].boundaries)


def expected_boundaries(
    given: Sequence[int],
    references: References,
    record: Mapping[str, Any] | None,
    config: Sequence[int] | None,
    *,
    slots: int | None = None,
) -> tuple[tuple[int, ...] | None, str]:
    """The boundaries the draft was trained on and who says so; the first that knows is believed.

    ``record``: notebook 02's, if there is one; ``config``: what the config means under its trainer's numbering;
    ``slots``: how many streams were captured, for samples may hold more states than the draft reads.
    """
    named = references.named if slots is None or len(references.named or ()) == slots else None
    tested = ((record or {}).get("results") or {}).get("best_boundaries")
    known = {boundary for states in references.states for boundary in states}
    if not (isinstance(tested, list) and all(type(k) is int and k in known for k in tested)):
        tested = None  # a record of another making
    for boundaries, why in (
        (given, "the parameter trained_boundaries"),
        (named, "the reference samples' metadata"),
        (tested, "notebook 02: the boundaries under which these weights predict best"),
        (config, "the draft's config, under its trainer's numbering"),
    ):
        if boundaries:
            return tuple(boundaries), why
    return None, "nobody: give trained_boundaries, or run notebook 02 first"


def _tokens(capture: Capture) -> Tensor:
    """The request's tokens by position; a capture that lacks rows cannot be recomputed."""
    ids, positions = capture.input_ids, capture.positions
    if ids is None or positions.tolist() != list(range(len(ids))):
        raise InputError(capture.source, "no token for every position from 0", "input_ids and positions 0, 1, 2 ...",
                         "capture with an empty prefix cache, or give `reference` samples")  # fmt: skip
    return ids


def _sample_of(capture: Capture, samples: Sequence[Sample]) -> Sample:
    ids = _tokens(capture)
    for sample in samples:
        length = min(len(ids), len(sample.input_ids))
        if torch.equal(sample.input_ids[:length], ids[:length]):
            return sample
    raise InputError(capture.source, "tokens that no reference sample begins with", "the same request in `reference`")
