"""Which of the target's states is each stream that entered the draft?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lib.errors import InputError

Boundary = int | str  #: a number, or "final_norm": the last state after the target's final norm
SHIFTS = (0, -1, 1, -2, 2)
#: Sizes of a tensor-parallel group whose unreduced equal shares are recognised.
RANKS = (2, 4, 8)
#: Fewer positions say too little about what all tokens share.
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
