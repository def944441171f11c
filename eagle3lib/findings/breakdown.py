"""What notebook 03 shows beside the curves: every number of steps at once, and where each verify step stood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from eagle3lib.errors import InputError
from eagle3lib.findings.finding import Finding
from eagle3lib.findings.offline import Pair, Watch
from eagle3lib.findings.rule import Inspection
from eagle3lib.findings.wiring_rules import accuracy_findings, coverage_findings
from eagle3lib.maths.draft import Chains
from eagle3lib.maths.vocabulary import target_ids
from eagle3lib.measuring.acceptance import Acceptance, from_histograms
from eagle3lib.measuring.accuracy import coverage
from eagle3lib.measuring.evaluation import Evaluation, Request, evaluate, sample_walk
from eagle3lib.measuring.expected import Rule, expected
from eagle3lib.measuring.forecast import predicted, setting_forecast
from eagle3lib.measuring.prediction import VerifySteps, accept_counts
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.measuring.trails import Trail, from_walk
from eagle3lib.reading.points import Setting
from eagle3lib.reading.samples import Sample
from eagle3lib.reading.token_kinds import INSIDE, OUTSIDE, decoder, kind_of

#: Chains of 1 to so many steps come out of one forward pass.
MOST_STEPS = 8


@dataclass(frozen=True)
class Breakdown:
    """Of the samples, predicted; empty where that needs something that was not given.

    ``sources``: the setting in force, and what is to be set beside it. ``settings``: accept length by
    ``(num_steps, topk, num_draft_tokens)``, all that was computed. ``ceiling``: what a draft would reach that is right
    whenever its vocabulary has the token. ``kind``: of a token id. ``left_out``: why there is nothing.
    """

    sources: tuple[Acceptance, ...] = ()
    trails: tuple[Trail, ...] = ()
    settings: Mapping[Setting, Rate] = field(default_factory=dict)
    ceiling: Acceptance | None = None
    coverage: Rate | None = None
    kind: Callable[[int], str] | None = None
    #: ``quality.undertrained`` and ``vocab.coverage``, as far as these samples settle them.
    findings: tuple[Finding, ...] = ()
    unfinished: int = 0  #: samples that end in the middle of a step, which is left out
    left_out: str = ""


def break_down(
    pair: Pair | str, samples: str, setting: Setting, watch: Watch = lambda items, words: items,
    temperature: float = 0.0,
) -> Breakdown:  # fmt: skip
    """Chains of 1 to 8 steps and ``setting`` itself, over ``samples``, under the pair's wiring.

    Of a tree also what it would be if each node attended to its own chain; above temperature 0 the expectation.
    """
    if isinstance(pair, str):
        return Breakdown(left_out=pair)
    try:
        ids = target_ids(pair.draft, pair.wiring)
        kind = _kinds(pair.target.folder, ids)
        told = [] if not samples else [
            _predict(pair, each, setting, temperature)
            for each in watch(pair.dataset(samples), "samples, every number of steps")
        ]  # fmt: skip
    except InputError as error:
        return Breakdown(left_out=f"The samples are not predicted. {error}")
    if not told:
        return Breakdown(kind=kind)
    if not any(each.walk.accepted for each in told):
        return Breakdown(
            kind=kind, left_out="The samples are not predicted: no reply is long enough for a verify step."
        )
    num_steps, spoken = setting[0], [each.sample for each in told]
    missing = coverage([s.input_ids for s in spoken], [s.loss_mask for s in spoken], ids)
    trails = tuple(from_walk(each.walk, each.sample, num_steps) for each in told)
    chains = Evaluation(tuple(each.chains for each in told))
    settings = {
        (steps, 1, steps + 1): chains.accept_length(steps) for steps in range(1, max(MOST_STEPS, num_steps) + 1)
    }
    settings[setting] = rate(*accept_counts([each.walk for each in told]))
    ceiling = None if ids is None else _ceiling(spoken, ids, num_steps)
    found = (*coverage_findings(missing), *_undertrained(pair.inspection, chains))
    unfinished = sum(not each.walk.complete for each in told)
    why = next((each.why for each in told if each.why), "")
    return Breakdown(
        _sources(told, setting, temperature, pair.rule),
        trails,
        settings,
        ceiling,
        missing,
        kind,
        found,
        unfinished,
        why,
    )


@dataclass(frozen=True)
class _Told:
    """One sample: its chains of every length, the walk of the setting in force, and what stands beside it."""

    sample: Sample
    chains: Request
    walk: VerifySteps
    textbook: VerifySteps | None
    expected: tuple[float, ...]
    why: str  #: there is no expectation


def _predict(pair: Pair, made: SampleStates, setting: Setting, temperature: float) -> _Told:
    draft, wiring = pair.draft, pair.wiring
    chains = evaluate(draft, wiring, made.sample, made.stack(wiring.boundaries), max(MOST_STEPS, setting[0]))
    walk, textbook, counts, why = chains.walks[setting[0] - 1], None, (), ""
    if setting[1] > 1:
        walk = setting_forecast(draft, wiring, made, setting).walk
        textbook = setting_forecast(draft, wiring, made, setting, ancestors=True).walk
    if temperature and pair.rule != "greedy":
        try:
            counts = expected(draft, wiring, made, pair.target, setting, temperature, pair.rule)
        except InputError as error:
            why = f"What to expect at temperature {temperature:g} is left out. {error}"
    bare = replace(made.sample, states=None, last_hidden_state=None)  # a hundred conversations' are too many to hold
    return _Told(bare, chains, walk, textbook, counts, why)


def _sources(told: Sequence[_Told], setting: Setting, temperature: float, rule: Rule) -> tuple[Acceptance, ...]:
    made = [predicted([each.walk for each in told], setting, "predicted for the samples")]
    if setting[1] > 1:
        textbook = [each.textbook for each in told if each.textbook]
        made.append(predicted(textbook, setting, "what if: keys of true ancestors"))
    if all(each.expected for each in told) and any(sum(each.expected) for each in told):
        num_steps, topk, num_draft_tokens = setting
        made.append(
            from_histograms(
                f"expected at temperature {temperature:g}", "offline",
                f"{rule} sampling, expectation along the samples' tokens; bonus token included",
                [each.expected for each in told],
                num_steps=num_steps, num_draft_tokens=num_steps + 1 if topk == 1 else num_draft_tokens,
            )
        )  # fmt: skip
    return tuple(made)


def _kinds(target: str | Path, ids: torch.Tensor | None) -> Callable[[int], str]:
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


def _ceiling(samples: Sequence[Sample], ids: torch.Tensor, num_steps: int) -> Acceptance | None:
    """The walk of a draft that proposes the true token wherever its vocabulary has it; ``None`` without a step."""
    histograms = []
    for sample in samples:
        tokens = sample.input_ids
        starts = torch.arange(sample.prompt_tokens - 1, len(tokens) - 1)
        ahead = (starts + 1 + torch.arange(1, num_steps + 1)[:, None]).clamp(max=len(tokens) - 1)  # [steps, S]
        proposed = torch.where(torch.isin(tokens, ids.cpu()), tokens, -1)[ahead]
        chains = Chains(proposed, starts, torch.zeros(proposed.shape))
        walk = sample_walk(sample, starts, partial(chains.runs, num_steps=num_steps))
        histograms.append(walk.histogram(num_steps))
    if not any(map(sum, histograms)):  # replies that end within their first step
        return None
    definition = "right whenever the draft vocabulary has the token"
    return from_histograms("vocabulary ceiling", "offline", definition, histograms, num_steps=num_steps)


def _undertrained(inspection: Inspection, chains: Evaluation) -> list[Finding]:
    """Only where the files give no reason to doubt the wiring: else what is poor may be the way it is fed."""
    served, trained = inspection.served.wiring, inspection.trained.wiring
    doubted = any(finding.severity == "error" for finding in inspection.findings)
    if not any(request.counts.starts for request in chains.requests):  # no reply of more than ``MOST_STEPS`` tokens
        return []
    if doubted or served is None or trained is None or served.boundaries != trained.boundaries:
        return []
    return accuracy_findings(chains.depths()[0].conditional)
