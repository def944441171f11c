"""03: what the acceptance numbers say, and which of them say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from eagle3lib.findings.finding import Finding, Severity
from eagle3lib.findings.gap import SHAPES, SMALL_GAP, at_floor, gap
from eagle3lib.measuring.acceptance import Acceptance, Histogram
from eagle3lib.measuring.plausibility import counts_bonus_in_rate, counts_root_as_draft, impossible
from eagle3lib.reading.engine_reports import DEFINITIONS, EngineReport
from eagle3lib.reading.training_reports import Checkpoint, TrainingReport

#: The EAGLE-3 paper trains on more than 500,000 conversations (arXiv 2503.01840, section 4).
FEW_SAMPLES = 100_000
#: Verify steps that show a floor: where even three drafts in ten are right at first, fewer than one in ten
#: accepted in so many has a chance below 0.1 %.
FLOOR_STEPS = 40
#: How exactly two accept lengths of one run are one apart, printed with two digits.
ONE_APART = 0.05

#: case -> (kind, severity, what follows, what to do)
_CASES: dict[str, tuple[str, Severity, str, str]] = {
    "impossible": (
        "metric.impossible", "error",
        "No run can give these numbers: something else was counted, or counts of different runs were mixed.",
        "Take SGLang's meta_info of single requests (spec_correct_drafts_histogram, spec_verify_ct).",
    ),
    "impossible training": (
        "metric.impossible", "error",
        "The metric cannot take these values: they are percentages, or another metric. They are left out.",
        "Name trainer and metric, and give shares between 0 and 1.",
    ),
    "bonus in rate": (
        "metric.definition", "warning",
        "This rate counts the bonus token (SGLang before 0.5.9): higher than today's rate of the same run.",
        "Compare accept lengths, or divide accepted by proposed drafts.",
    ),
    "bonus left out": (
        "metric.definition", "warning",
        "One apart is the bonus token, the target's own: every verify step gives it, and papers count it.",
        "Add 1 to a mean of accepted drafts before it is set beside an accept length.",
    ),
    "root as draft": (
        "metric.definition", "warning",
        "The verify step's root token was counted as a draft: the accept rate looks lower than it is.",
        "Divide by verify steps x (draft tokens - 1).",
    ),
    "ambiguous": (
        "metric.definition", "warning",
        "It cannot be set beside served acceptance.",
        'Name both, for example {"trainer": "speculators", "metric": "cond_acc", "values": [0.61, 0.48]}.',
    ),
    "optimistic": (
        "metric.definition", "note",
        "Targets outside the draft vocabulary never count as wrong: served acceptance is lower.",
        "Multiply by the coverage, or compare with the offline accuracy of notebook 02.",
    ),
    "few samples": (
        "quality.undertrained", "note",
        "EAGLE-3 drafts gain with data: the paper trains on more than 500,000. What is right on text like the "
        "training's can be far lower on other text.",
        "Train on more and more varied conversations, answered by the target itself.",
    ),
    "overtrained": (
        "quality.overtrained", "warning",
        "A falling loss says nothing about acceptance: the last checkpoint accepts less than an earlier one.",
        "Choose the checkpoint by acceptance on held-out text, not by loss; then more or more varied text.",
    ),
    "unmeasured": (
        "metric.unmeasured", "warning",
        "Zero and absent mean not measured: such entries are left out, never averaged as zeros.",
        "Check that the server speculates (algorithm, draft path), and read meta_info of finished requests.",
    ),
    "floor": (
        "acceptance.floor", "error",
        "Next to nothing is accepted: drafting and verifying cost time and give back the bonus token alone.",
        "This is a symptom: look for its cause in the draft's config, weights and captured states.",
    ),
    "below": (
        "acceptance.below_prediction", "error",
        "Served is below what these weights do on these tokens: the engine feeds them something else, or "
        "reads them differently.",
        "This is a symptom: notebook 04 says what entered the draft, notebook 01 what the engine reads.",
    ),
    "above": (
        "flags.lossy", "warning",
        "More is accepted than these weights propose right: acceptance is simulated or loosened, or another "
        "draft is served.",
        "Unset SGLANG_SIMULATE_ACC_LEN and leave --speculative-accept-threshold-* at 1.0.",
    ),
    "sampled": (
        "sampling.temperature", "warning",
        "Without rejection sampling SGLang accepts a draft token with the target's own probability for it: "
        "acceptance falls as temperature rises, whatever the draft.",
        "Measure at temperature 0, or compare with the expectation at this temperature.",
    ),
}  # fmt: skip


def _finding(case: str, subject: str, evidence: str, severity: Severity | None = None) -> Finding:
    kind, usual, consequence, remedy = _CASES[case]
    return Finding(kind, severity or usual, subject, evidence, consequence, remedy)


def report_findings(report: EngineReport, others: bool = False) -> list[Finding]:
    """``metric.*`` of one engine's account of itself. ``others``: beside it a report that measured something."""
    found, (num_steps, _, num_draft_tokens) = [], report.setting
    if wrong := impossible(report, num_steps):
        found.append(_finding("impossible", report.source, "; ".join(wrong)))
    if evidence := counts_bonus_in_rate(report, num_draft_tokens):
        found.append(_finding("bonus in rate", f"{report.source} accept rate", evidence))
    if evidence := counts_root_as_draft(report, num_draft_tokens):
        found.append(_finding("root as draft", f"{report.source} proposed drafts", evidence))
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
        found.append(_finding("unmeasured", report.source, evidence, severity))
    return found


def training_findings(report: TrainingReport) -> list[Finding]:
    """``metric.*`` of a trainer's numbers; ``quality.undertrained`` as a note where it names few conversations."""
    subject = f"{report.source} {report.metric}"
    if report.meaning == "impossible":
        return [_finding("impossible training", subject, report.definition)]
    found = []
    if report.training_samples is not None and report.training_samples < FEW_SAMPLES:
        found.append(_finding("few samples", subject, f"trained on {report.training_samples:,} conversations"))
    if report.meaning == "ambiguous":
        named = f"trainer {report.trainer or 'not named'}, metric {report.metric}"
        found.append(_finding("ambiguous", subject, f"{named}: {report.definition}"))
    elif report.draft_vocab_targets:
        found.append(_finding("optimistic", subject, report.definition))
    return found


def checkpoint_findings(found: Sequence[Checkpoint]) -> list[Finding]:
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
    return [_finding("overtrained", "the checkpoint", evidence)]


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
    return [_finding("floor", served.source, f"accept length {length.value:.3f} {counted}, bonus token included")]


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
    return [_finding("below" if found.share < 0 else "above", source, evidence)]


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
                found.append(_finding("bonus left out", f"{source.source} accept length", evidence))
    return found


def sampling_findings(temperature: float) -> list[Finding]:
    """``sampling.temperature``: served requests were sampled, the reference is greedy."""
    if temperature <= 0:
        return []
    return [_finding("sampled", "temperature", f"temperature {temperature:g} beside a greedy reference")]
