"""One draft under one wiring on many conversations: accuracy per depth and the verify steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from eagle3lib.measuring.prediction import VerifySteps, accept_counts, verify_sample
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
    steps: tuple[VerifySteps, ...]
    prompt_tokens: int = 1
    trainers: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """All requests, in the order given."""

    requests: tuple[Request, ...]

    def depths(self) -> list[DepthAccuracy]:
        return depth_accuracy([request.counts for request in self.requests])

    def steps(self, num_steps: int) -> list[VerifySteps]:
        return [request.steps[num_steps - 1] for request in self.requests]

    def accept_length(self, num_steps: int) -> Rate:
        """Tokens a verify step, the bonus token counted."""
        return rate(*accept_counts(self.steps(num_steps)))

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
    steps = tuple(verify_sample(sample, chains.starts, partial(chains.runs, num_steps=n)) for n in range(1, depths + 1))
    return Request(sample.name, sample.category, counts, steps, sample.prompt_tokens, trainers)


def evaluate_all(
    draft: Draft, wiring: Wiring, dataset: Iterable[SampleStates], depths: int,
    teach: Callable[[SampleStates], TargetArgmax | None] = lambda sample_states: None,
) -> Evaluation:  # fmt: skip
    """``evaluate`` for one sample after the other; ``teach`` gives what the target would say."""
    return Evaluation(tuple(
        evaluate(draft, wiring, own.sample, own.stack(wiring.boundaries), depths, said=teach(own))
        for own in dataset
    ))  # fmt: skip
