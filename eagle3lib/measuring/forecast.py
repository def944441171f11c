"""What greedy serving will accept, predicted from the draft alone and set beside what was served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from eagle3lib.maths.draft import Draft, forward, rows_of
from eagle3lib.maths.target import Target
from eagle3lib.maths.trees import build_tree
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.acceptance import Acceptance, from_histograms
from eagle3lib.measuring.evaluation import sample_walk
from eagle3lib.measuring.prediction import VerifySteps
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.reading.points import Setting
from eagle3lib.reading.samples import Sample

#: Tokens of the target past a request's end, so that its last verify step can be predicted too.
BEYOND = 16


@dataclass(frozen=True)
class Forecast:
    """One request under one setting.

    ``runs``: drafts that would be accepted at each start of the last reply, ``None`` where the conversation is not
    known far enough. ``walk``: the steps that follow from them.
    """

    name: str
    runs: tuple[int | None, ...]
    walk: VerifySteps


@dataclass(frozen=True)
class Mismatch:
    """A served verify step that accepted another number of drafts than predicted; ``start`` counts from the prompt."""

    request: int
    start: int
    predicted: int
    served: int


@dataclass(frozen=True)
class Agreement:
    """Verify steps that accept exactly the predicted number of drafts, of all steps compared.

    ``ordered_steps``: those whose place in the request was known, so that each was compared with the prediction
    at its own start; of the others the request's histogram was compared. ``left_out``: served steps past the
    prediction.
    """

    equal: int
    steps: int
    ordered_steps: int
    left_out: int
    mismatches: tuple[Mismatch, ...] = ()


def continued(samples: Sequence[Sample], target: Target) -> list[Sample]:
    """Each sample with the target's own greedy words past its end; ``target`` is small enough to run."""
    said = target.greedy([sample.input_ids.tolist() for sample in samples], BEYOND, stop=False)
    return [_longer(sample, words) for sample, words in zip(samples, said, strict=True)]


def _longer(sample: Sample, words: Sequence[int]) -> Sample:
    more = torch.tensor(words, dtype=sample.input_ids.dtype)
    mask = torch.cat([sample.loss_mask, torch.ones(len(more), dtype=torch.bool)])
    return replace(sample, input_ids=torch.cat([sample.input_ids, more]), loss_mask=mask, states=None,
                   last_hidden_state=None)  # fmt: skip


def setting_forecast(
    draft: Draft,
    wiring: Wiring,
    sample_states: SampleStates,
    setting: Setting,
    beyond: int = 0,
    ancestors: bool = False,
) -> Forecast:
    """What serving accepts under ``setting``: a chain where topk is 1, else SGLang's tree.

    Greedy, or SGLang's target-only sampling of these very tokens. ``beyond``: the last so many tokens are past the
    request's end. ``ancestors`` as in ``trees.build_tree``: each node attends to the keys of its own chain.
    """
    num_steps, topk, _ = setting
    sample, states = sample_states.sample, sample_states.stack(wiring.boundaries)
    first = sample.prompt_tokens - 1
    if first >= rows_of(sample.input_ids, wiring):  # a shift that leaves a short reply no start
        return Forecast(sample.name, (), VerifySteps((), (), complete=False))
    runs: Callable[[Tensor], tuple[Tensor, Tensor]]
    if topk == 1:
        chains = forward(draft, wiring, states, sample.input_ids, num_steps, first)
        starts, runs = chains.starts, partial(chains.runs, num_steps=num_steps)
    else:
        trees = build_tree(draft, wiring, states, sample.input_ids, setting, first, ancestors)
        starts, runs = trees.starts, trees.runs
    each, sure = runs(sample.input_ids)
    known = tuple(n if ok else None for n, ok in zip(each.tolist(), sure.tolist(), strict=True))
    return Forecast(sample.name, known, sample_walk(sample, starts, runs, beyond))


def predicted(walks: Sequence[VerifySteps], setting: Setting, source: str = "offline prediction") -> Acceptance:
    """The walks as one source, to be set beside an engine's."""
    num_steps, topk, num_draft_tokens = setting
    return from_histograms(
        source, "offline", "walk of the verify steps that greedy serving takes; bonus token included",
        [walk.histogram(num_steps) for walk in walks],
        num_steps=num_steps, num_draft_tokens=num_steps + 1 if topk == 1 else num_draft_tokens,
    )  # fmt: skip


def agreement(forecasts: Sequence[Forecast], served: Sequence[tuple[Sequence[int] | None, Sequence[int]]]) -> Agreement:
    """Compare request by request.

    Args:
        served: drafts accepted in each verify step in order, ``None`` where the order is not known, and the
            request's histogram.
    """
    equal = steps = ordered = left_out = 0
    mismatches = []
    for i, (forecast, (in_order, histogram)) in enumerate(zip(forecasts, served, strict=True)):
        if in_order is None:
            walk = forecast.walk
            counts = [walk.accepted.count(j) for j in range(len(histogram))]
            compared = sum(histogram) - (not walk.complete)  # any of them may be the step past the prediction
            equal += min(compared, sum(min(pair) for pair in zip(histogram, counts, strict=True)))
            left_out += not walk.complete
            steps += compared
            continue
        at = 0
        for accepted in in_order:
            expected = forecast.runs[at] if at < len(forecast.runs) else None
            if expected is None:
                left_out += 1
            else:
                steps, ordered, equal = steps + 1, ordered + 1, equal + (expected == accepted)
                if expected != accepted:
                    mismatches.append(Mismatch(i, at, expected, accepted))
            at += accepted + 1
    return Agreement(equal, steps, ordered, left_out, tuple(mismatches))
