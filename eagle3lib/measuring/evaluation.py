"""One draft under one wiring on many conversations: accuracy per depth and the walk of verify steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from torch import Tensor

from eagle3lib.maths.draft import Draft, forward, rows_of
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.accuracy import (
    DEFINITIONS,
    DepthAccuracy,
    DepthCounts,
    TargetArgmax,
    depth_accuracy,
    depth_counts,
    trainer_counts,
)
from eagle3lib.measuring.prediction import VerifySteps, accept_counts, simulate_verify
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.reading.samples import Sample


@dataclass(frozen=True)
class Request:
    """What one conversation says: counts per depth, and its steps for each ``num_steps`` from 1.

    ``trainers``: numerators and denominators ``[depths]`` under each trainer's definition, where it is known what
    the target would say.
    """

    name: str
    category: str | None
    counts: DepthCounts
    walks: tuple[VerifySteps, ...]
    prompt_tokens: int = 1
    trainers: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """All requests, in the order given."""

    requests: tuple[Request, ...]

    def depths(self) -> list[DepthAccuracy]:
        return depth_accuracy([request.counts for request in self.requests])

    def walks(self, num_steps: int) -> list[VerifySteps]:
        return [request.walks[num_steps - 1] for request in self.requests]

    def accept_length(self, num_steps: int) -> Rate:
        """Tokens a verify step, the bonus token counted."""
        return rate(*accept_counts(self.walks(num_steps)))

    def trainers(self) -> dict[str, list[Rate]]:
        """Each trainer's own accuracy at depths 1 and on; empty where no request has it."""
        counted = [request.trainers for request in self.requests if request.trainers]
        found = {}
        for name in DEFINITIONS if counted else ():
            tops, bottoms = zip(*(each[name] for each in counted), strict=True)
            found[name] = [
                rate(top, bottom) for top, bottom in zip(np.transpose(tops), np.transpose(bottoms), strict=True)
            ]
        return found


def evaluate(
    draft: Draft, wiring: Wiring, sample: Sample, states: Tensor, depths: int, said: TargetArgmax | None = None
) -> Request:
    """Run the draft over one sample.

    Args:
        states: ``[T, K, H_t]`` at ``wiring.boundaries``.
        said: what the target would say after each token, for the trainers' definitions.
    """
    mask, first = sample.loss_mask, sample.prompt_tokens - 1
    if first >= rows_of(sample.input_ids, wiring):  # a shift that leaves a short reply no start
        none = DepthCounts(0, (0,) * depths, (0,) * depths)
        return Request(sample.name, sample.category, none, (VerifySteps((), (), True),) * depths, sample.prompt_tokens)
    wide = first if said is None else max(0, min(first, int(mask.int().argmax()) - depths))
    chains = forward(draft, wiring, states, sample.input_ids, depths, wide)
    trainers = {} if said is None else {name: trainer_counts(name, chains, said, mask) for name in DEFINITIONS}
    own = chains.starts >= first
    chains = replace(
        chains, proposed=chains.proposed[:, own], starts=chains.starts[own], margins=chains.margins[:, own]
    )
    counts = depth_counts(chains, sample.input_ids, mask)
    walks = [
        sample_walk(sample, chains.starts, partial(chains.runs, num_steps=steps)) for steps in range(1, depths + 1)
    ]
    return Request(sample.name, sample.category, counts, tuple(walks), sample.prompt_tokens, trainers)


def evaluate_all(
    draft: Draft, wiring: Wiring, dataset: Iterable[SampleStates], depths: int,
    teach: Callable[[SampleStates], TargetArgmax | None] = lambda sample_states: None,
) -> Evaluation:  # fmt: skip
    """``evaluate`` for one sample after the other; ``teach`` gives what the target would say."""
    return Evaluation(tuple(
        evaluate(draft, wiring, own.sample, own.stack(wiring.boundaries), depths, said=teach(own))
        for own in dataset
    ))  # fmt: skip


def sample_walk(
    sample: Sample, starts: Tensor, runs: Callable[[Tensor], tuple[Tensor, Tensor]], beyond: int = 0
) -> VerifySteps:
    """The steps of all replies of a conversation.

    ``runs(tokens)``: what each of ``starts`` would accept where the conversation ends with ``tokens``, and whether
    that is sure; see ``Chains.runs`` and ``Trees.runs``. ``beyond``: as in ``setting_forecast``.
    """
    first, parts, offsets = int(starts[0]), [], []
    for begin, end in sample.replies:
        here = slice(begin - 1 - first, end - 1 - first)  # the starts that know a token of this reply
        accepted, sure = runs(sample.input_ids[:end])
        outputs = end - begin - (beyond if end == len(sample.input_ids) else 0)
        parts.append(simulate_verify(accepted[here], sure[here], outputs))
        offsets.append(here.start)
    return _join(parts, offsets)


def _join(parts: Sequence[VerifySteps], offsets: Sequence[int]) -> VerifySteps:
    accepted = tuple(n for part in parts for n in part.accepted)
    starts = tuple(at + offset for part, offset in zip(parts, offsets, strict=True) for at in part.starts)
    return VerifySteps(accepted, starts, all(part.complete for part in parts))
