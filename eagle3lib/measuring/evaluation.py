"""One draft under one wiring on many conversations: accuracy per depth and the walk of verify steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from eagle3lib.maths.draft import Chains, Draft, forward
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.accuracy import DepthAccuracy, DepthCounts, depth_accuracy, depth_counts
from eagle3lib.measuring.prediction import Walk, accept_counts, walk
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.reading.samples import Sample


@dataclass(frozen=True)
class Request:
    """What one conversation says: counts per depth, and its steps for each ``num_steps`` from 1."""

    name: str
    category: str | None
    counts: DepthCounts
    walks: tuple[Walk, ...]


@dataclass(frozen=True)
class Evaluation:
    """All requests, in the order given."""

    requests: tuple[Request, ...]

    def depths(self) -> list[DepthAccuracy]:
        return depth_accuracy([request.counts for request in self.requests])

    def walks(self, num_steps: int) -> list[Walk]:
        return [request.walks[num_steps - 1] for request in self.requests]

    def accept_length(self, num_steps: int) -> Rate:
        """Tokens a verify step, the bonus token counted."""
        return rate(*accept_counts(self.walks(num_steps)))


def evaluate(draft: Draft, wiring: Wiring, sample: Sample, states: Tensor, depths: int, beyond: int = 0) -> Request:
    """Run the draft over one sample.

    Args:
        states: ``[T, K, H_t]`` at ``wiring.boundaries``.
        beyond: how many tokens at the end continue past the request's end; with ``depths`` of them the last
            verify step can be predicted too.
    """
    chains = forward(draft, wiring, states, sample.input_ids, depths, first=sample.prompt_tokens - 1)
    mask = sample.loss_mask
    counts = depth_counts(chains, sample.input_ids, mask)
    return Request(sample.name, sample.category, counts, sample_walks(chains, sample, beyond))


def sample_walks(chains: Chains, sample: Sample, beyond: int = 0) -> tuple[Walk, ...]:
    """The steps of all replies of a conversation, one walk for each ``num_steps`` from 1."""
    right, _ = chains.right(sample.input_ids)
    first, depths = int(chains.starts[0]), len(right)
    joined = []
    for num_steps in range(1, depths + 1):
        parts = []
        for begin, end in sample.replies:
            here = slice(begin - 1 - first, end - 1 - first)  # the starts that know a token of this reply
            reply = right[:, here]
            ahead = chains.starts[here] + 1 + _column(depths, reply)
            outputs = end - begin - (beyond if end == len(sample.input_ids) else 0)
            parts.append(walk(reply, num_steps, ahead < end, outputs))
        offsets = [begin - 1 - first for begin, _ in sample.replies]
        joined.append(_join(parts, offsets))
    return tuple(joined)


def _column(depths: int, like: Tensor) -> Tensor:
    return like.new_ones(depths, dtype=int).cumsum(0)[:, None]  # 1 .. depths


def _join(parts: Sequence[Walk], offsets: Sequence[int]) -> Walk:
    accepted = tuple(n for part in parts for n in part.accepted)
    starts = tuple(at + offset for part, offset in zip(parts, offsets, strict=True) for at in part.starts)
    return Walk(accepted, starts, all(part.complete for part in parts))
