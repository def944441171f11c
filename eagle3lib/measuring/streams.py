"""Which of the target's states is each captured stream that entered the draft, and which should it be?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.target import Target
from eagle3lib.reading.captures import Capture
from eagle3lib.reading.samples import Sample, read_samples

Boundary = int | str  #: a number, or "final_norm": the last state after the target's final norm
SHIFTS = (0, -1, 1, -2, 2)
#: Sizes of a tensor-parallel group whose unreduced equal shares are recognised.
RANKS = (2, 4, 8)
#: Fewer positions are too few for the median over tokens.
MIN_POSITIONS = 4
#: A stream is a state when it is this near to it, ...
MAX_ERROR = 0.2
#: ... and this much nearer than to any other, unless it is the one expected there. States within a block lie
#: halfway between two boundaries and fail here.
MAX_ERROR_TO_RUNNER_UP = 0.5


@dataclass(frozen=True)
class StreamMatch:
    """The state that a stream is nearest to.

    ``cosine`` and ``relative_error`` are medians over rows, after the reference's median over tokens is taken
    from both sides: what all tokens share (a few huge channels) would make every boundary look like its
    neighbours. ``relative_error`` is ``|row - reference| / |reference - median|``.
    """

    stream: int  #: its place in the input of ``fc``, from 0
    boundary: Boundary | None  #: ``None`` where no state fits
    cosine: float
    relative_error: float
    shift: int  #: row t is the reference's row t + shift
    runner_up: Boundary
    runner_up_cosine: float
    nearest: Boundary  #: the boundary, fitting or not
    #: 1/R where no state fits but R times the stream does: one rank's share of a sum that was not reduced.
    scale: float = 1.0
    expected_boundary: Boundary | None = None


@dataclass(frozen=True)
class _Fit:
    boundary: Boundary
    shift: int
    error: float
    cosine: float


def match_streams(
    streams: Sequence[Tensor],
    references: Sequence[Mapping[Boundary, Tensor]],
    positions: Sequence[Tensor] | None = None,
    expected: Sequence[Boundary] | None = None,
) -> list[StreamMatch]:
    """Compare every stream with every boundary at row shifts of -2 to 2.

    Args:
        streams: one [T, K, H] a request.
        references: the request's states by boundary, each [P, H], row = position.
        positions: one [T] a request: the position of each row; by default 0, 1, ...
        expected: the boundary that each stream should be; missing entries are ``None`` in the result.

    Raises:
        InputError: nothing to compare, K differs between requests, or a reference has another width.
    """
    _check(streams, references)
    if positions is None:
        positions = [torch.arange(len(rows)) for rows in streams]
    matches = []
    for stream in range(streams[0].shape[1]):
        rows = [request[:, stream].float() for request in streams]
        should_be = expected[stream] if expected is not None and stream < len(expected) else None
        best, other = _best(rows, references, positions, SHIFTS[:1])
        fitting, scale = _fitting(best, other, should_be), 1.0
        if not fitting:
            best, other = _best(rows, references, positions, SHIFTS)
            fitting = _fitting(best, other, should_be)
        for ranks in () if fitting else RANKS:
            whole, next_best = _best([request * ranks for request in rows], references, positions, SHIFTS[:1])
            if _fitting(whole, next_best, should_be):
                best, other, scale = whole, next_best, 1 / ranks
                break
        matches.append(
            StreamMatch(
                stream=stream,
                boundary=best.boundary if fitting else None,
                cosine=best.cosine,
                relative_error=best.error,
                shift=best.shift,
                runner_up=other.boundary,
                runner_up_cosine=other.cosine,
                nearest=best.boundary,
                scale=scale,
                expected_boundary=should_be,
            )
        )
    return matches


def rank_disagreement(ranks: Sequence[Tensor]) -> float:
    """How far the ranks' copies of one request's rows lie apart: the median over rows of ``|a - b| / |a|``.

    Every rank holds the full reduced state, so the ranks agree up to rounding. States captured before the
    reduction of tensor parallelism are partial sums and do not.
    """
    first, *others = (rows.float() for rows in ranks)
    if not others:
        raise InputError("ranks", "one", "captures of at least two ranks")
    errors = [((first - other).norm(dim=-1) / first.norm(dim=-1).clamp_min(1e-30)).median() for other in others]
    return float(torch.stack(errors).max())


def _check(streams: Sequence[Tensor], references: Sequence[Mapping[Boundary, Tensor]]) -> None:
    if not streams or len(streams) != len(references) or any(len(rows) == 0 for rows in streams):
        raise InputError("streams", f"{len(streams)} captures for {len(references)} references", "one each, with rows")
    for request, states in zip(streams, references, strict=True):
        if request.dim() != 3 or request.shape[1] != streams[0].shape[1]:
            raise InputError("streams", f"shape {list(request.shape)}", f"[T, {streams[0].shape[1]}, H]")
        if len(states) < 2:
            raise InputError("reference states", f"{len(states)} boundaries", "at least two to tell apart")
        for boundary, state in states.items():
            if len(state) < MIN_POSITIONS:
                raise InputError(f"reference {boundary}", f"{len(state)} rows", f"at least {MIN_POSITIONS}")
            if state.dim() != 2 or state.shape[1] != request.shape[2]:
                raise InputError(f"reference {boundary}", f"shape {list(state.shape)}", f"[P, {request.shape[2]}]")


def _best(
    rows: Sequence[Tensor],
    references: Sequence[Mapping[Boundary, Tensor]],
    positions: Sequence[Tensor],
    shifts: Sequence[int],
) -> tuple[_Fit, _Fit]:
    """The nearest state, and the nearest of another boundary."""
    fits = sorted(_fits(rows, references, positions, shifts), key=lambda fit: fit.error)
    others = [fit for fit in fits if fit.boundary != fits[0].boundary]
    if not others:
        raise InputError("streams", "no finite row at a position of the reference", "rows of the same requests")
    return fits[0], others[0]


def _fitting(best: _Fit, other: _Fit, expected: Boundary | None) -> bool:
    """Near, and nearer than any other: where the nearest is the expected one, alike neighbours are no doubt."""
    told_apart = best.boundary == expected or best.error <= MAX_ERROR_TO_RUNNER_UP * other.error
    return best.error <= MAX_ERROR and told_apart


def _fits(
    rows: Sequence[Tensor],
    references: Sequence[Mapping[Boundary, Tensor]],
    positions: Sequence[Tensor],
    shifts: Sequence[int],
) -> Iterator[_Fit]:
    for boundary in references[0]:
        states = [request[boundary].float() for request in references]  # [P, H] each
        centre = torch.cat(states).median(0).values  # [H]; one huge first token must not move it
        for shift in shifts:
            pairs = [_pair(*each, shift) for each in zip(rows, states, positions, strict=True)]
            captured = torch.cat([pair[0] for pair in pairs])  # [N, H]
            reference = torch.cat([pair[1] for pair in pairs]) - centre  # [N, H]
            if len(captured) == 0:
                continue
            captured = captured - centre
            size = reference.norm(dim=-1).clamp_min(1e-30)
            error = (captured - reference).norm(dim=-1) / size
            cosine = (captured * reference).sum(-1) / (size * captured.norm(dim=-1).clamp_min(1e-30))
            yield _Fit(boundary, shift, float(error.median()), float(cosine.median()))


def _pair(rows: Tensor, states: Tensor, positions: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """The finite rows whose shifted position the reference has, and its rows there, [N, H] each."""
    count = min(len(rows), len(positions))
    at = positions[:count] + shift
    inside = (at >= 0) & (at < len(states)) & rows[:count].isfinite().all(-1)
    return rows[:count][inside], states[at[inside]]


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
    count: int | None = None,
) -> tuple[tuple[int, ...] | None, str]:
    """The boundaries the draft was trained on and where that is from; the first source that knows is used.

    ``record``: notebook 02's, if there is one; ``config``: what the config means under its trainer's numbering;
    ``count``: how many streams were captured, for samples may hold more states than the draft reads.
    """
    named = references.named if count is None or len(references.named or ()) == count else None
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
