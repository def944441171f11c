"""03: what the acceptance numbers say, and which of them say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from eagle3lib.findings.catalogue import make_finding
from eagle3lib.findings.finding import Finding, Severity
from eagle3lib.findings.gap import SHAPES, SMALL_GAP, at_floor, gap
from eagle3lib.measuring.acceptance import Acceptance, Histogram
from eagle3lib.measuring.plausibility import counts_bonus_in_rate, counts_root_as_draft, impossible
from eagle3lib.reading.engine_reports import DEFINITIONS, EngineReport
from eagle3lib.reading.training_reports import CheckpointMetrics, TrainingReport

#: The EAGLE-3 paper trains on more than 500,000 conversations (arXiv 2503.01840, section 4).
FEW_SAMPLES = 100_000
#: Verify steps that show a floor: where even three drafts in ten are right at first, fewer than one in ten
#: accepted in so many has a chance below 0.1 %.
FLOOR_STEPS = 40
#: How exactly two accept lengths of one run are one apart, printed with two digits.
ONE_APART = 0.05


def report_findings(report: EngineReport, others: bool = False) -> list[Finding]:
    """``metric.*`` of one engine's account of itself. ``others``: beside it a report that measured something."""
    found, (num_steps, _, num_draft_tokens) = [], report.setting
    if wrong := impossible(report, num_steps):
        found.append(make_finding("metric.impossible", report.source, "; ".join(wrong)))
    if evidence := counts_bonus_in_rate(report, num_draft_tokens):
        found.append(make_finding("metric.definition", f"{report.source} accept rate", evidence, case="bonus in rate"))
    if evidence := counts_root_as_draft(report, num_draft_tokens):
        found.append(
            make_finding("metric.definition", f"{report.source} proposed drafts", evidence, case="root as draft")
        )
    # A request that ends with the token sampled at prefill has no verify step to report.
    silent = [
        request
        for request in report.requests
        if request.form == "unmeasured" and (request.completion_tokens is None or request.completion_tokens > 1)
    ]
    if silent or not report.requests:
        zeros = f"{len(silent)} of {len(report.requests)} entries have no verify step, or zeros in its place"
        evidence = report.unreadable or zeros
        stray = bool(report.unreadable) and others
        severity: Severity = "warning" if report.form == "unmeasured" and not stray else "note"
        found.append(make_finding("metric.unmeasured", report.source, evidence, severity=severity))
    return found


def training_findings(report: TrainingReport) -> list[Finding]:
    """``metric.*`` of a trainer's numbers; ``quality.undertrained`` as a note where it names few conversations."""
    subject = f"{report.source} {report.metric}"
    if report.meaning == "impossible":
        return [make_finding("metric.impossible", subject, report.definition, case="training")]
    found = []
    if report.training_samples is not None and report.training_samples < FEW_SAMPLES:
        found.append(
            make_finding(
                "quality.undertrained",
                subject,
                f"trained on {report.training_samples:,} conversations",
                case="few samples",
            )
        )
    if report.meaning == "ambiguous":
        named = f"trainer {report.trainer or 'not named'}, metric {report.metric}"
        found.append(make_finding("metric.definition", subject, f"{named}: {report.definition}"))
    elif report.draft_vocab_targets:
        found.append(make_finding("metric.definition", subject, report.definition, case="optimistic"))
    return found


def checkpoint_findings(found: Sequence[CheckpointMetrics]) -> list[Finding]:
    """``quality.overtrained``: acceptance peaked before the last checkpoint and fell since, while the loss fell on."""
    if len(found) < 3:
        return []
    best = max(reversed(found), key=lambda each: each.acceptance)
    later = found[found.index(best) + 1 :]
    falls = all(after.acceptance < before.acceptance for before, after in pairwise([best, *later]))
    losses = [each.loss for each in found]
    loss_fell = None not in losses and all(after < before for before, after in pairwise(losses))
    if not later or not falls or not loss_fell or later[-1].acceptance > (1 - SMALL_GAP) * best.acceptance:
        return []
    course = ", ".join(f"{each.acceptance:g}" for each in found)
    evidence = f"{course}, while the loss fell from {losses[0]:g} to {losses[-1]:g}; the best is epoch {best.epoch:g}"
    return [make_finding("quality.overtrained", "the checkpoint", evidence)]


def floor_findings(served: Acceptance, num_steps: int | None = None) -> list[Finding]:
    """``acceptance.floor``: the drafts might as well not be there.

    What an engine states without counts is a mean over at least one log interval, 40 verify steps by default.
    """
    length, steps = served.accept_length, served.verify_steps
    if length is None or length.value is None or length.value < 1 or not at_floor(length.value, num_steps):
        return []
    if steps is not None and steps < FLOOR_STEPS:
        return []
    counted = "as the engine states it" if steps is None else f"over {steps} verify steps"
    return [
        make_finding(
            "acceptance.floor", served.source, f"accept length {length.value:.3f} {counted}, bonus token included"
        )
    ]


def prediction_findings(source: str, predicted: Sequence[Histogram], served: Sequence[Histogram]) -> list[Finding]:
    """Served against predicted accept length on the same requests, in the same order.

    Below: ``acceptance.below_prediction``. Above: ``flags.lossy``, for greedy serving accepts no more than
        the weights propose right. Silent where the interval of the difference holds 0.
    """
    found = gap(source, predicted, served)
    if found is None or not found.seen:
        return []
    low, high = found.difference.ci or (0.0, 0.0)
    evidence = (
        f"served accept length {found.served:.3f}, the offline prediction {found.predicted:.3f}: {found.share:+.0%}, "
        f"a difference of {found.difference.value:+.3f} ({low:+.3f} to {high:+.3f}) over {found.requests} requests"
    )
    if found.share < 0:
        evidence += f". {SHAPES[found.shape][0].upper()}{SHAPES[found.shape][1:]}"
        return [make_finding("acceptance.below_prediction", source, evidence)]
    return [make_finding("flags.lossy", source, evidence, case="measured")]


def stated_findings(served: Sequence[Acceptance]) -> list[Finding]:
    """``metric.definition``: a mean without counts that is one lower than what another engine source counts."""
    counted = [source for source in served if source.verify_steps and source.accept_length]
    found = []
    for source in served:
        if source.definition != DEFINITIONS["average"] or source.accept_length is None:
            continue
        stated = source.accept_length.value or 0.0
        for other in counted:
            length = other.accept_length.value or 0.0
            if abs(length - stated - 1) <= ONE_APART:
                evidence = f"{source.source} states {stated:.2f}, {other.source} counts {length:.2f}"
                found.append(
                    make_finding("metric.definition", f"{source.source} accept length", evidence, case="bonus left out")
                )
    return found


def sampling_findings(temperature: float) -> list[Finding]:
    """``sampling.temperature``: served requests were sampled, the reference is greedy."""
    if temperature <= 0:
        return []
    return [
        make_finding("sampling.temperature", "temperature", f"temperature {temperature:g} beside a greedy reference")
    ]
