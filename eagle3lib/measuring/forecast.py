"""What greedy serving will accept, predicted from the draft alone and set beside what was served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target_states import TargetTensors, greedy, target_states
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.acceptance import Acceptance, from_histograms
from eagle3lib.measuring.evaluation import Request, evaluate
from eagle3lib.measuring.prediction import Walk
from eagle3lib.measuring.wiring_search import Material
from eagle3lib.reading.samples import Sample, check_vocab

#: Tokens of the target past a request's end, so that its last verify step can be predicted too.
BEYOND = 16


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


def continued(samples: Sequence[Sample], target: str | Path, tokens: int = BEYOND) -> list[Sample]:
    """Each sample with the target's own greedy words past its end; ``target`` is small enough to run."""
    said = greedy(target, [sample.input_ids.tolist() for sample in samples], tokens, stop=False)
    return [_longer(sample, words) for sample, words in zip(samples, said, strict=True)]


def _longer(sample: Sample, words: Sequence[int]) -> Sample:
    more = torch.tensor(words, dtype=sample.input_ids.dtype)
    mask = torch.cat([sample.loss_mask, torch.ones(len(more), dtype=torch.bool)])
    return replace(sample, input_ids=torch.cat([sample.input_ids, more]), loss_mask=mask, states=None,
                   last_hidden_state=None)  # fmt: skip


def material(
    sample: Sample, target: str | Path, tensors: TargetTensors, cache: str | Path,
    boundaries: Sequence[int] | None = None, assumed: Sequence[int] | None = None,
) -> Material:  # fmt: skip
    """A sample with its states: those in its file, else computed from the target and kept in ``cache``.

    Args:
        boundaries: those to compute, all where left out.
        assumed: what the states of a file are that does not name their boundaries; without it such a file is
            refused, for states under a wrong name give wrong numbers.
    """
    check_vocab(sample, tensors.embedding.shape[0])
    if sample.states is None:
        states = target_states(target, sample.input_ids, boundaries, cache)
        return Material.of(sample, states, boundaries or range(states.shape[1]), tensors.embedding)
    known = sample.boundaries or assumed
    if known is None or len(known) != sample.states.shape[1]:
        raise InputError(
            sample.name, f"{sample.states.shape[1]} states at unknown boundaries", "their boundaries",
            "write them into the file's metadata as `boundaries`, a JSON list",
        )  # fmt: skip
    return Material.of(sample, sample.states, known, tensors.embedding)


def forecast(
    draft: Draft, wiring: Wiring, materials: Iterable[Material], num_steps: int, beyond: int = 0
) -> list[Request]:
    """The verify steps of every request under ``wiring``; the last ``beyond`` tokens are past the requests' end."""
    return [evaluate(draft, wiring, m.sample, m.stack(wiring.boundaries), num_steps, beyond) for m in materials]


def predicted(requests: Sequence[Request], num_steps: int, source: str = "offline prediction") -> Acceptance:
    """The walks of ``num_steps`` as one source, to be set beside an engine's."""
    histograms = [request.walks[num_steps - 1].histogram(num_steps) for request in requests]
    return from_histograms(
        source, "offline", "walk of the verify steps that greedy serving takes; bonus token included", histograms,
        num_steps=num_steps, num_draft_tokens=num_steps + 1,
    )  # fmt: skip


def agreement(walks: Sequence[Walk], served: Sequence[tuple[Sequence[int] | None, Sequence[int]]]) -> Agreement:
    """Compare request by request.

    Args:
        served: drafts accepted in each verify step in order, ``None`` where the order is not known, and the
            request's histogram.
    """
    equal = steps = ordered = left_out = 0
    for walk, (in_order, histogram) in zip(walks, served, strict=True):
        if in_order is None:
            forecast_counts = [walk.accepted.count(j) for j in range(len(histogram))]
            equal += sum(min(pair) for pair in zip(histogram, forecast_counts, strict=True))
            left_out += not walk.complete
            steps += sum(histogram) - (not walk.complete)
            continue
        forecasts, at = dict(zip(walk.starts, walk.accepted, strict=True)), 0
        last = walk.starts[-1] if walk.starts else -1
        for accepted in in_order:
            if at > last and not walk.complete:
                left_out += 1
            else:
                steps, ordered = steps + 1, ordered + 1
                equal += forecasts.get(at) == accepted
            at += accepted + 1
    return Agreement(equal, steps, ordered, left_out)
