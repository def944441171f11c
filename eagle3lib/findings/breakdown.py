"""What notebook 03 shows beside the curves: every number of steps at once, and where each verify step stood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from eagle3lib.errors import InputError
from eagle3lib.findings.breakdown_rules import Limit, limits
from eagle3lib.findings.config_rules import inspect
from eagle3lib.findings.finding import Finding
from eagle3lib.findings.offline import Watch
from eagle3lib.findings.rule import Inspection
from eagle3lib.findings.wiring_rules import accuracy_findings, coverage_findings
from eagle3lib.maths.draft import Chains, Draft, target_ids
from eagle3lib.maths.target_states import TargetTensors
from eagle3lib.measuring.acceptance import Acceptance, from_histograms
from eagle3lib.measuring.accuracy import coverage
from eagle3lib.measuring.evaluation import sample_walk
from eagle3lib.measuring.forecast import Setting, forecast, setting_forecast
from eagle3lib.measuring.materials import material
from eagle3lib.measuring.prediction import Walk, accept_counts
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.measuring.trails import Trail, from_walk
from eagle3lib.reading.samples import Sample, read_samples
from eagle3lib.reading.token_kinds import INSIDE, OUTSIDE, decoder, kind_of

#: Chains of 1 to so many steps come out of one forward pass.
MOST_STEPS = 8


@dataclass(frozen=True)
class Breakdown:
    """Of the samples, predicted; empty where that needs something that was not given.

    ``settings``: accept length by ``(num_steps, topk, num_draft_tokens)``, all that was computed. ``ceiling``: what
    a draft would reach that is right whenever its vocabulary has the token. ``kind``: of a token id.
    """

    trails: tuple[Trail, ...] = ()
    settings: Mapping[Setting, Rate] = field(default_factory=dict)
    ceiling: Acceptance | None = None
    coverage: Rate | None = None
    limits: tuple[Limit, ...] = ()
    kind: Callable[[int], str] | None = None
    #: ``quality.undertrained`` and ``vocab.coverage``, as far as these samples settle them.
    findings: tuple[Finding, ...] = ()


def break_down(
    draft: str, target: str, launch: str, engine: str, samples: str, setting: Setting, cache: Path,
    watch: Watch = lambda items, words: items,
) -> Breakdown:  # fmt: skip
    """Chains of 1 to 8 steps and ``setting`` itself, over ``samples``, under the wiring that the engine's rules give.

    Whatever stands in the way has been said by :func:`offline.offline`, which asks for the same.
    """
    if not draft:
        return Breakdown()
    try:
        inspection = inspect(draft, target, launch, engine)
    except InputError:
        return Breakdown()
    known = tuple(limits(inspection))
    try:
        wiring = inspection.runnable_wiring
        tensors = TargetTensors.load(target)
        loaded = Draft.load(draft, tensors.embedding)
        ids = target_ids(loaded, wiring)
    except InputError:
        return Breakdown(limits=known)
    kind = _kinds(target, ids)
    if not samples:
        return Breakdown(limits=known, kind=kind)
    num_steps, topk, _ = setting
    walked: list[tuple[Sample, tuple[Walk, ...], Walk]] = []
    vocab, width = tensors.embedding.shape
    try:
        for sample in watch(read_samples(samples, width, vocab=vocab), "every number of steps"):
            made = material(sample, target, tensors, cache, wiring.boundaries)
            [request] = forecast(loaded, wiring, [made], max(MOST_STEPS, num_steps))
            own = request.walks[num_steps - 1] if topk == 1 else setting_forecast(loaded, wiring, made, setting).walk
            walked.append((_bare(sample), request.walks, own))
    except InputError:
        return Breakdown(limits=known, kind=kind)
    told = [sample for sample, _, _ in walked]
    missing = coverage([s.input_ids for s in told], [s.loss_mask for s in told], ids)
    trails = tuple(from_walk(own, sample, num_steps) for sample, _, own in walked)
    settings = {
        (steps, 1, steps + 1): rate(*accept_counts([walks[steps - 1] for _, walks, _ in walked]))
        for steps in range(1, max(MOST_STEPS, num_steps) + 1)
    }
    settings[setting] = rate(*accept_counts([own for _, _, own in walked]))
    ceiling = None if ids is None else _ceiling(told, ids, num_steps)
    found = (*coverage_findings(missing), *_undertrained(inspection, trails))
    return Breakdown(trails, settings, ceiling, missing, known, kind, found)


def _bare(sample: Sample) -> Sample:
    """Without its states: a hundred conversations' are too many to hold."""
    return replace(sample, states=None, last_hidden_state=None)


def _kinds(target: str, ids: torch.Tensor | None) -> Callable[[int], str]:
    """The kind of a token by its text; without a readable tokenizer only whether the draft has it."""
    own = None if ids is None else set(ids.tolist())
    try:
        text = decoder(target)
    except InputError:
        text = None

    def kind(token: int) -> str:
        if own is not None and token not in own:
            return OUTSIDE
        return INSIDE if text is None else kind_of(text([token]))

    return kind


def _ceiling(samples: Sequence[Sample], ids: torch.Tensor, num_steps: int) -> Acceptance:
    """The walk of a draft that proposes the true token wherever its vocabulary has it."""
    histograms = []
    for sample in samples:
        tokens = sample.input_ids
        starts = torch.arange(sample.prompt_tokens - 1, len(tokens) - 1)
        ahead = (starts + 1 + torch.arange(1, num_steps + 1)[:, None]).clamp(max=len(tokens) - 1)  # [steps, S]
        proposed = torch.where(torch.isin(tokens, ids.cpu()), tokens, -1)[ahead]
        chains = Chains(proposed, starts, torch.zeros(proposed.shape))
        walk = sample_walk(sample, starts, partial(chains.runs, num_steps=num_steps))
        histograms.append(walk.histogram(num_steps))
    definition = "right whenever the draft vocabulary has the token"
    return from_histograms("vocabulary ceiling", "offline", definition, histograms, num_steps=num_steps)


def _undertrained(inspection: Inspection, trails: Sequence[Trail]) -> list[Finding]:
    """Only where the files give no reason to doubt the wiring: else what is poor may be the way it is fed."""
    served, trained = inspection.served.wiring, inspection.trained.wiring
    doubted = any(finding.severity == "error" for finding in inspection.findings)
    if doubted or served is None or trained is None or served.boundaries != trained.boundaries:
        return []
    steps = [len(trail.steps) for trail in trails]
    return accuracy_findings(rate([sum(step.accepted > 0 for step in trail.steps) for trail in trails], steps))
