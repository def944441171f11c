"""03 and 05: what follows from numbers of acceptance and of cost, and which of them are meaningless.

Notebook 03 has every account of acceptance in one list, and what is found in each of them and between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from torch import Tensor

from eagle3lib.findings.catalogue import make_finding
from eagle3lib.findings.finding import Finding, interval
from eagle3lib.findings.gap import SMALL_GAP, at_floor
from eagle3lib.findings.offline import Breakdown
from eagle3lib.measuring.acceptance import Acceptance, from_report, from_training
from eagle3lib.measuring.plausibility import counts_bonus_in_rate, counts_root_as_draft, impossible
from eagle3lib.measuring.rates import is_significant, paired_difference, rate, unpaired_difference
from eagle3lib.measuring.served import ServedPrediction
from eagle3lib.measuring.sweep import Summary
from eagle3lib.reading.engine_reports import DEFINITIONS, EngineReport
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.run_flags import differing
from eagle3lib.reading.setting import Setting
from eagle3lib.reading.training_reports import CheckpointMetrics, TrainingReport

#: The EAGLE-3 paper trains on more than 500,000 conversations (arXiv 2503.01840, section 4).
FEW_SAMPLES = 100_000
#: Verify steps that show a floor: where even three drafts in ten are right at first, fewer than one in ten
#: accepted in so many has a chance below 0.1 %.
FLOOR_STEPS = 40
#: Steps that show where acceptance ends.
CEILING_STEPS = 50
#: Half a draft token a verify step is accepted beside the bonus token: the draft does its part.
ACCEPTED_WELL = 1.5
#: How exactly two accept lengths of one run are one apart, printed with two digits.
ONE_APART = 0.05
#: Greedy runs in other modes round otherwise; smaller differences are left to that.
SMALL_MODE = 0.05
#: A reply that ends in so many times the same token, over half of it at least, is stuck; all of so many: the server is.
REPEATED, LEAST_REPLIES = 16, 2
#: A run that differs by one of these is another experiment, not another mode: other weights, other numbers in
#: them, another prompt for the same text, another way to draw.
NOT_A_MODE = re.compile(
    r"speculative|model(?!_impl)|draft|quant|dtype|torchao|override|weight|revision|load_format|lora|"
    r"tokenizer|template|context_length|sampling_(defaults|params)|temperature|top_[pk]|penalty"
)


@dataclass(frozen=True)
class Accounts:
    """``sources``: predicted for the samples, predicted for what was served, by training, served.

    ``reports``: the engine reports that measured something; ``served``: those as acceptance, in the same order.
    """

    sources: tuple[Acceptance, ...]
    reports: tuple[EngineReport, ...]
    served: tuple[Acceptance, ...]
    findings: tuple[Finding, ...]


def all_accounts(
    samples: Breakdown, predictions: Sequence[ServedPrediction], reports: Sequence[EngineReport],
    training: Sequence[TrainingReport], checkpoints: Sequence[CheckpointMetrics], *,
    num_steps: int | None, launch: str, num_draft_tokens: int, temperature: float,
) -> Accounts:  # fmt: skip
    """``num_steps``: of the setting in force, ``None`` where unknown; the last three are the notebook's parameters."""
    usable = [report for report in reports if report.form != "unmeasured"]
    served = [from_report(report) for report in usable]
    trained = [from_training(report, num_steps) for report in training]
    # Where each is predicted for its own tokens, none is held against the samples' greedy ones.
    beside_greedy = served and samples.sources and len(predictions) != len(served)

    sources = (*samples.sources, *(each.acceptance for each in predictions), *trained, *served)

    def findings() -> Iterator[Finding]:
        for report in reports:
            yield from report_findings(report, others=bool(usable))
            yield from degenerate_findings(report)
        for report in training:
            yield from training_findings(report)
        yield from checkpoint_findings(checkpoints)
        yield from stated_findings(served)
        yield from mode_findings(usable)
        for report, source in zip(usable, served, strict=True):
            yield from floor_findings(source, report.setting.num_steps)
            yield from ceiling_findings(source, report.setting, requested_tokens(report, launch, num_draft_tokens))
        yield from sampling_findings(temperature if beside_greedy else 0)

    return Accounts(sources, tuple(usable), tuple(served), tuple(findings()))


def report_findings(report: EngineReport, others: bool = False) -> Iterator[Finding]:
    """``metric.*`` of one engine's account of itself. ``others``: beside it a report that measured something."""
    source, (num_steps, _, num_draft_tokens) = report.source, report.setting
    if wrong := impossible(report, num_steps):
        yield make_finding("metric.impossible", source, "; ".join(wrong))
    if evidence := counts_bonus_in_rate(report, num_draft_tokens):
        yield make_finding("metric.definition", f"{source} accept rate", evidence, case="bonus in rate")
    if evidence := counts_root_as_draft(report, num_draft_tokens):
        yield make_finding("metric.definition", f"{source} proposed drafts", evidence, case="root as draft")
    # A request that ends with the token sampled at prefill has no verify step to report.
    unmeasured = [each.completion_tokens for each in report.requests if each.form == "unmeasured"]
    silent = [tokens for tokens in unmeasured if tokens is None or tokens > 1]
    if silent or not report.requests:
        evidence = f"{len(silent)} of {len(report.requests)} entries have no verify step, or zeros in its place"
        stray = bool(report.unreadable) and others
        severity = "warning" if report.form == "unmeasured" and not stray else "note"
        yield make_finding("metric.unmeasured", source, report.unreadable or evidence, severity=severity)


def degenerate_findings(report: EngineReport) -> Iterator[Finding]:
    """``output.degenerate``: replies that end in one token repeated; an error where all do."""
    replies = [each.sample.input_ids[each.sample.prompt_tokens :] for each in report.requests if each.sample]
    stuck = [ids for ids in replies if len(ids) and _repeats(ids) >= max(REPEATED, len(ids) / 2)]
    if stuck:
        least = min(map(_repeats, stuck))
        what = f"{len(stuck)} of {len(replies)} replies end in one token repeated {least} times or more."
        every = len(stuck) == len(replies) >= LEAST_REPLIES
        yield make_finding("output.degenerate", report.source, what, severity="error" if every else "warning")


def _repeats(ids: Tensor) -> int:
    """How often the last token stands at the end."""
    others = (ids != ids[-1]).nonzero()
    return len(ids) - 1 - int(others[-1]) if len(others) else len(ids)


def training_findings(report: TrainingReport) -> Iterator[Finding]:
    """``metric.*`` of a trainer's numbers; ``quality.undertrained`` as a note where it names few conversations."""
    subject, definition, samples = f"{report.source} {report.metric}", report.definition, report.training_samples
    if report.meaning != "impossible" and samples is not None and samples < FEW_SAMPLES:
        evidence = f"trained on {samples:,} conversations"
        yield make_finding("quality.undertrained", subject, evidence, case="few samples")
    if report.meaning == "impossible":
        yield make_finding("metric.impossible", subject, definition, case="training")
    elif report.meaning == "ambiguous":
        evidence = f"trainer {report.trainer or 'not named'}, metric {report.metric}: {definition}"
        yield make_finding("metric.definition", subject, evidence)
    elif report.draft_vocab_targets:
        yield make_finding("metric.definition", subject, definition, case="optimistic")


def checkpoint_findings(found: Sequence[CheckpointMetrics]) -> Iterator[Finding]:
    """``quality.overtrained``: acceptance peaked before the last checkpoint and fell since, while the loss fell on."""
    if len(found) < 3:
        return
    best = max(reversed(found), key=lambda each: each.acceptance)
    later = found[found.index(best) + 1 :]
    falls = all(after.acceptance < before.acceptance for before, after in pairwise([best, *later]))
    losses = [each.loss for each in found]
    loss_fell = None not in losses and all(after < before for before, after in pairwise(losses))
    if later and falls and loss_fell and later[-1].acceptance <= (1 - SMALL_GAP) * best.acceptance:
        course = ", ".join(f"{each.acceptance:g}" for each in found)
        loss = f"while the loss fell from {losses[0]:g} to {losses[-1]:g}"
        evidence = f"{course}, {loss}; the best is epoch {best.epoch:g}"
        yield make_finding("quality.overtrained", "the checkpoint", evidence)


def floor_findings(served: Acceptance, num_steps: int | None = None) -> Iterator[Finding]:
    """``acceptance.floor``: the drafts might as well not be there.

    What an engine states without counts is a mean over at least one log interval, 40 verify steps by default.
    """
    length, steps = served.accept_length and served.accept_length.value, served.verify_steps
    long_enough = steps is None or steps >= FLOOR_STEPS
    if length is not None and length >= 1 and at_floor(length, num_steps) and long_enough:
        counted = "as the engine states it" if steps is None else f"over {steps} verify steps"
        evidence = f"accept length {length:.3f} {counted}, bonus token included"
        yield make_finding("acceptance.floor", served.source, evidence)


def stated_findings(served: Sequence[Acceptance]) -> Iterator[Finding]:
    """``metric.definition``: a mean without counts that is one lower than what another engine source counts."""
    lengths = [(source, source.accept_length.value or 0.0) for source in served if source.accept_length]
    means = [pair for pair in lengths if pair[0].definition == DEFINITIONS["average"]]
    for mean, stated in means:
        for other, length in lengths:
            if other.verify_steps and abs(length - stated - 1) <= ONE_APART:
                evidence = f"{mean.source} states {stated:.2f}, {other.source} counts {length:.2f}"
                subject = f"{mean.source} accept length"
                yield make_finding("metric.definition", subject, evidence, case="bonus left out")


def sampling_findings(temperature: float) -> Iterator[Finding]:
    """``sampling.temperature``: served requests were sampled, the reference is greedy."""
    if temperature > 0:
        evidence = f"temperature {temperature:g} beside a greedy reference"
        yield make_finding("sampling.temperature", "temperature", evidence)


def requested_tokens(report: EngineReport, launch: str, num_draft_tokens: int) -> int | None:
    """The number of draft tokens that was requested, before the engine's own changes."""
    own = report.flags.get("speculative_num_draft_tokens")
    if isinstance(own, int):
        return own
    return num_draft_tokens or Launch.parse(launch).integer("speculative_num_draft_tokens")


def ceiling_findings(served: Acceptance, setting: Setting, wanted: int | None) -> Iterator[Finding]:
    """``flags.steps_tokens``: verify steps accept fewer drafts than the requested draft tokens allow."""
    histogram, (num_steps, topk, _) = served.histogram or (), setting
    deepest = max((accepted for accepted, steps in enumerate(histogram) if steps), default=0)
    ceiling, steps = num_steps or deepest, sum(histogram)
    full = histogram[ceiling] if ceiling < len(histogram) else 0
    below = topk in (None, 1) and wanted is not None and deepest <= ceiling < wanted - 1
    sure = steps >= CEILING_STEPS and (num_steps is not None or full >= CEILING_STEPS / 2)
    if below and sure:
        evidence = (
            f"{wanted} draft tokens were requested, and none of {steps} verify steps accepted more than {ceiling}; "
            f"{full} of them accepted all {ceiling}: no accept length can exceed {ceiling + 1}."
        )
        subject = f"{served.source} --speculative-num-draft-tokens"
        yield make_finding("flags.steps_tokens", subject, evidence, case="measured")


def mode_findings(reports: Sequence[EngineReport]) -> Iterator[Finding]:
    """``engine.mode``: two runs of the same prompts, whose flags are known and differ by one, accept differently.

    Without flags nothing: two files may just as well be two drafts, or one before and after its cure.
    """
    pairs = [(one, other, flag) for one, other in combinations(reports, 2) if (flag := _only_flag(one, other))]
    for one, other, flag in pairs:
        (tokens, steps), (base, base_steps) = _counts(one), _counts(other)
        lengths = sum(tokens) / sum(steps), sum(base) / sum(base_steps)
        if abs(lengths[0] - lengths[1]) < SMALL_MODE * max(lengths):
            continue
        if one.form != "window" and len(steps) == len(base_steps):
            found = paired_difference(tokens, steps, base, base_steps)
        else:
            found = unpaired_difference(rate(tokens, steps), rate(base, base_steps))
        if not is_significant(found, min(len(steps), len(base_steps)), len(pairs)):
            continue
        (low, worse), (high, better) = sorted(zip(lengths, (one.source, other.source), strict=True))
        evidence = (
            f"Accept length {lengths[0]:.2f} in {one.source}, {lengths[1]:.2f} in {other.source}: {flag}; a difference "
            f"of {found.value:+.2f}{interval(found.ci, '+.2f')}: {1 - low / high:.0%} less in {worse} than in {better}."
        )
        yield make_finding("engine.mode", f"{one.source}, {other.source}", evidence)


def _only_flag(one: EngineReport, other: EngineReport) -> str | None:
    """The one flag in which the runs differ, as text; ``None`` where they are not to be compared."""
    if one.form != other.form or one.form in ("unmeasured", "average", "alpha"):
        return None
    prompts = [[request.prompt_tokens for request in report.requests] for report in (one, other)]
    if prompts[0] != prompts[1] and not any(None in lengths for lengths in prompts):
        return None
    flags = differing(one.flags, other.flags) if one.flags and other.flags else {}
    if len(flags) != 1 or any(map(NOT_A_MODE.search, flags)):
        return None
    ((name, values),) = flags.items()
    here, there = ("not given" if value is None else str(value) for value in values)
    return f"only --{name.replace('_', '-')} differs ({here}, {there})"


def _counts(report: EngineReport) -> tuple[list[float], list[float]]:
    """Tokens given and verify steps of each request; of a log window its mean, weighted."""
    pairs = [each.counted or (each.stated["accept_length"] * each.weight, each.weight) for each in report.measured]
    return [given for given, _ in pairs], [count for _, count in pairs]


def cost_findings(summaries: Sequence[Summary], *, on_cpu: bool) -> Iterator[Finding]:
    """``cost.not_worth_it`` for every load at which no setting is shown to pay and one accepted well is
    shown to lose.

    Args:
        on_cpu: the points were measured on a CPU, where verifying several tokens costs as much as decoding
            them one by one: what is found there is a note, for it does not carry over to a GPU.
    """
    for load in sorted({summary.concurrency for summary in summaries}):
        here = [summary for summary in summaries if summary.concurrency == load]
        losing = [summary for summary in here if summary.loses and (summary.accept_length or 0) >= ACCEPTED_WELL]
        if losing and not any(summary.pays for summary in here):
            evidence = "; ".join(
                f"{'/'.join(map(str, each.setting))}: accept length {each.accept_length:.2f}, "
                f"{each.tokens_per_second:.1f} tokens/s, {each.speedup:.2f} times no speculation"
                f"{interval(each.speedup_ci)}"
                for each in losing
            )
            yield make_finding("cost.not_worth_it", f"concurrency {load}", evidence, case="on a CPU" if on_cpu else "")
