"""What notebook 03 predicts: the samples, at every number of steps at once, and what was served.

With a draft under the wiring that the engine's rules give, beside its target. What the inputs do
not allow is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from eagle3lib.errors import InputError
from eagle3lib.findings.config_rules import inspect
from eagle3lib.findings.finding import Finding
from eagle3lib.findings.inspection import Inspection
from eagle3lib.findings.wiring_rules import accuracy_findings, coverage_findings
from eagle3lib.maths.device import resolve_device
from eagle3lib.maths.draft import Chains, Draft
from eagle3lib.maths.draft_weights import target_ids
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.acceptance import Acceptance, from_predictions, from_setting
from eagle3lib.measuring.accuracy import Evaluation, Request, coverage, evaluate
from eagle3lib.measuring.expected import Rule, expected
from eagle3lib.measuring.prediction import VerifySteps, accept_counts, predict, verify_sample
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.measuring.sample_states import Progress, SampleStates, StatesDataset
from eagle3lib.measuring.served import ServedPrediction, predict_reports
from eagle3lib.measuring.served_wiring import ServedWiring, served_wiring
from eagle3lib.measuring.steps import predicted_steps
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.samples import Sample, read_samples
from eagle3lib.reading.setting import Setting
from eagle3lib.reading.token_kinds import INSIDE, OUTSIDE, decoder, kind_of

#: Chains of 1 to so many steps come out of one forward pass.
MOST_STEPS = 8

#: Passes items on and shows how far it is.
Watch = Callable[[Iterable, str], Iterable]


@dataclass(frozen=True)
class Pair:
    """Everything that a prediction needs. ``rule``: how the engine verifies above temperature 0; on a CPU as at 0."""

    inspection: Inspection
    draft: Draft
    wiring: Wiring
    target: Target
    rule: Rule

    def dataset(self, path: str) -> StatesDataset:
        vocab, width = self.target.embedding.shape
        return StatesDataset(read_samples(path, width, vocab=vocab), self.target, self.wiring.boundaries)


def open_pair(
    draft: str, target: str, launch: str, engine: str, cache: Path, dtype: str = "float32", device: str = "cpu"
) -> tuple[Inspection | None, Pair | str]:
    """The inspection, as far as the files allow, and the pair that predicts, or why there is none.

    Raises ``InputError`` for a ``device`` that is not here: asked for by name, it is no part to leave out.
    """
    place = resolve_device(device)
    inspection = None
    try:
        inspection = inspect(draft, target, launch, engine) if draft else None
        if not inspection or not target:
            return inspection, "Not predicted: that needs draft and target."
        wiring, opened = inspection.runnable_wiring, Target.open(target, dtype, place, cache)
        return inspection, Pair(inspection, opened.load_draft(draft), wiring, opened, _rule(inspection.launch))
    except InputError as error:
        return inspection, f"Not predicted. {error}"


def _rule(launch: Launch) -> Rule:
    """SGLang 0.5.23, ``eagle_utils._verify_uses_greedy``, ``speculative_hook``; ROCm may default otherwise."""
    if launch.text("device") in ("cpu", "xpu"):
        return "greedy"
    drawn = ("speculative_use_rejection_sampling", "speculative_use_block_verification")
    return "rejection" if any(launch.switch(name) for name in drawn) else "target-only"


def predict_served(
    pair: Pair | str, reports: Sequence[EngineReport], temperature: float = 0.0
) -> tuple[tuple[ServedPrediction, ...], str]:
    """What was served, predicted from its own tokens; and why not.

    Above temperature 0 that holds under the target-only rule too, where a rejected draft is never drawn.
    """
    if isinstance(pair, str) or not reports:
        return (), ""
    if temperature and pair.rule == "rejection":
        return (), "The served requests are not predicted: under rejection sampling the draft's draws decide."
    try:
        found = predict_reports(reports, pair.draft, pair.wiring, pair.target)
    except InputError as error:
        return (), f"The served requests are not predicted. {error}"
    if not found:
        known = any(report.setting.resolved() for report in reports)
        lacks = "no report gives their token ids" if known else "num_steps is not known: give it, or launch"
        return (), f"The served requests are not predicted: {lacks}."
    dropped = [f"{each.left_out} of {each.source}" for each in found if each.left_out]
    return tuple(found), f"Left out, as they give no usable token ids: {', '.join(dropped)}." if dropped else ""


def read_wiring(
    pair: Pair | str, reports: Sequence[EngineReport], temperature: float, progress: Progress
) -> list[ServedWiring]:
    """The prediction turned round: the wiring under which it is what was served; nothing where it cannot be found."""
    if isinstance(pair, str) or not reports or (temperature and pair.rule == "rejection"):
        return []
    ids, bases = pair.inspection.draft.aux_ids, [pair.inspection.target.rope.theta]
    try:
        return served_wiring(reports, pair.draft, pair.wiring, pair.target, ids=ids, bases=bases, progress=progress)
    except InputError:  # said of the prediction already, which needs the same
        return []


@dataclass(frozen=True)
class Breakdown:
    """Of the samples, predicted; empty where that needs something that was not given.

    ``sources``: the setting in force, and what is to be set beside it. ``steps``: as ``measuring.steps`` has them.
    ``settings``: accept length by setting, all that was computed. ``ceiling``: what a draft would reach that is right
    whenever its vocabulary has the token. ``kind``: of a token id. ``left_out``: why there is nothing.
    """

    sources: tuple[Acceptance, ...] = ()
    steps: pd.DataFrame = field(default_factory=lambda: predicted_steps([], 0))
    settings: Mapping[Setting, Rate] = field(default_factory=dict)
    ceiling: Acceptance | None = None
    coverage: Rate | None = None
    kind: Callable[[int], str] | None = None
    #: ``quality.undertrained`` and ``vocab.coverage``, as far as these samples settle them.
    findings: tuple[Finding, ...] = ()
    unfinished: int = 0  #: samples that end in the middle of a step, which is left out
    left_out: str = ""


def break_down(
    pair: Pair | str, samples: str, setting: Setting, watch: Watch = lambda items, label: items,
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
        dataset = watch(pair.dataset(samples), "samples, every number of steps") if samples else ()
        requests = [_predict(pair, each, setting, temperature) for each in dataset]
    except InputError as error:
        return Breakdown(left_out=f"The samples are not predicted. {error}")
    if not any(each.steps.accepted for each in requests):
        short = "The samples are not predicted: no reply is long enough for a verify step."
        return Breakdown(kind=kind, left_out=short if requests else "")
    num_steps, conversations = setting.num_steps, [each.sample for each in requests]
    missing = coverage([s.input_ids for s in conversations], [s.loss_mask for s in conversations], ids)
    chains = Evaluation(tuple(each.chains for each in requests))
    settings = {Setting(n, 1, n + 1): chains.accept_length(n) for n in range(1, max(MOST_STEPS, num_steps) + 1)}
    settings[setting] = rate(*accept_counts([each.steps for each in requests]))
    return Breakdown(
        sources=_sources(requests, setting, temperature, pair.rule),
        steps=predicted_steps(((each.steps, each.sample) for each in requests), num_steps),
        settings=settings,
        ceiling=None if ids is None else _ceiling(conversations, ids, num_steps),
        coverage=missing,
        kind=kind,
        findings=(*coverage_findings(missing), *_undertrained(pair.inspection, chains)),
        unfinished=sum(not each.steps.complete for each in requests),
        left_out=next((each.why for each in requests if each.why), ""),
    )


@dataclass(frozen=True)
class _Predicted:
    """One sample: its chains of every length, the steps of the setting in force, and what is shown beside them.

    ``ancestors``: of a tree whose nodes attend to their own chains. ``why``: there is no expectation.
    """

    sample: Sample
    chains: Request
    steps: VerifySteps
    ancestors: VerifySteps | None
    expected: tuple[float, ...]
    why: str


def _predict(pair: Pair, made: SampleStates, setting: Setting, temperature: float) -> _Predicted:
    draft, wiring, num_steps = pair.draft, pair.wiring, setting.num_steps
    chains = evaluate(draft, wiring, made.sample, made.stack(wiring.boundaries), max(MOST_STEPS, num_steps))
    steps, ancestors, counts, why = chains.steps[num_steps - 1], None, (), ""
    if setting.topk > 1:
        steps = predict(draft, wiring, made, setting).steps
        ancestors = predict(draft, wiring, made, setting, ancestors=True).steps
    if temperature and pair.rule != "greedy":
        try:
            counts = expected(draft, wiring, made, pair.target, setting, temperature, pair.rule)
        except InputError as error:
            why = f"What to expect at temperature {temperature:g} is left out. {error}"
    bare = replace(made.sample, states=None, last_hidden_state=None)  # a hundred conversations' are too many to hold
    return _Predicted(bare, chains, steps, ancestors, counts, why)


def _sources(
    requests: Sequence[_Predicted], setting: Setting, temperature: float, rule: Rule
) -> tuple[Acceptance, ...]:
    made = [from_predictions([each.steps for each in requests], setting, "predicted for the samples")]
    if setting.topk > 1:
        ancestors = [each.ancestors for each in requests if each.ancestors]
        made.append(from_predictions(ancestors, setting, "what if: keys of true ancestors"))
    if all(each.expected for each in requests) and any(sum(each.expected) for each in requests):
        definition = f"{rule} sampling, expectation along the samples' tokens; bonus token included"
        counts = [each.expected for each in requests]
        made.append(from_setting(f"expected at temperature {temperature:g}", definition, counts, setting))
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


def _ceiling(samples: Iterable[Sample], ids: torch.Tensor, num_steps: int) -> Acceptance | None:
    """What a draft accepts that proposes the true token wherever its vocabulary has it; ``None`` without a step."""
    steps = []
    for sample in samples:
        tokens = sample.input_ids
        starts = torch.arange(sample.prompt_tokens - 1, len(tokens) - 1)
        ahead = (starts + 1 + torch.arange(1, num_steps + 1)[:, None]).clamp(max=len(tokens) - 1)  # [steps, S]
        proposed = torch.where(torch.isin(tokens, ids.cpu()), tokens, -1)[ahead]
        chains = Chains(proposed, starts, torch.zeros(proposed.shape))
        steps.append(verify_sample(sample, starts, partial(chains.runs, num_steps=num_steps)))
    if not any(each.accepted for each in steps):  # replies that end within their first step
        return None
    definition = "right whenever the draft vocabulary has the token"
    histograms = [each.histogram(num_steps) for each in steps]
    return from_setting("vocabulary ceiling", definition, histograms, Setting(num_steps))


def _undertrained(inspection: Inspection, chains: Evaluation) -> Iterator[Finding]:
    """Only where the files give no reason to doubt the wiring: else what is poor may be the way it is fed."""
    served, trained = inspection.served.wiring, inspection.trained.wiring
    agree = served is not None and trained is not None and served.boundaries == trained.boundaries
    doubted = not agree or any(finding.severity == "error" for finding in inspection.findings)
    measured = any(request.counts.starts for request in chains.requests)  # a reply of more than ``MOST_STEPS`` tokens
    if measured and not doubted:
        yield from accuracy_findings(chains.depths()[0].conditional)
