"""02: what the samples themselves say: kinds of request, serving's own traffic, and the data's teacher."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from eagle3lib.findings.breakdown_rules import SMALL_FALL, Limit, category_findings, length_findings, step_sides
from eagle3lib.findings.finding import Finding
from eagle3lib.measuring.accuracy import Evaluation
from eagle3lib.measuring.rates import Rate, is_significant, rate, unpaired_difference
from eagle3lib.measuring.steps import predicted_steps
from eagle3lib.measuring.survey import LastState, Survey
from eagle3lib.measuring.wiring_search import GOOD_FIRST


def evaluated_steps(evaluation: Evaluation, num_steps: int) -> pd.DataFrame:
    """The verify steps with their places in the conversation, as ``measuring.steps`` has them."""
    return predicted_steps(zip(evaluation.steps(num_steps), evaluation.requests, strict=True), num_steps)


def kind_findings(evaluation: Evaluation, num_steps: int) -> list[Finding]:
    """``quality.domain``: a category of the samples that is predicted poorly while the others are not."""
    return category_findings("samples", evaluated_steps(evaluation, num_steps))


def traffic_findings(
    own: Evaluation, samples: Survey, served: Evaluation, traffic: Survey, num_steps: int
) -> list[Finding]:
    """``context.length`` or ``quality.domain``: traffic is predicted worse than the samples, which are fine.

    It is the length where traffic falls beyond the longest sample, or lies there altogether.
    """
    usual, here = own.accept_length(num_steps), served.accept_length(num_steps)
    first = own.depths()[0].conditional
    if first.value is None or first.value < GOOD_FIRST or here.value is None or usual.value is None:
        return []
    near, far = step_sides(evaluated_steps(served, num_steps), samples.longest)
    limit = Limit(samples.longest, "context.length", "the longest of the samples")
    longer = length_findings("traffic", near, far, limit)
    within = rate(near["tokens"], near["steps"])
    compared = here if within.value is None or not longer else within
    fewer = min(len(own.requests), len(served.requests))
    if (
        not is_significant(unpaired_difference(compared, usual), fewer)
        or compared.value > (1 - SMALL_FALL) * usual.value
    ):
        return longer
    beyond = within.value is None
    return longer + [
        Finding(
            "context.length" if beyond else "quality.domain",
            "warning",
            "traffic",
            f"Predicted accept length {_length(compared)} on traffic, {_length(usual)} on the samples"
            + (f"; all of it lies beyond the longest sample of {samples.longest} tokens." if beyond else ".")
            + f" Coverage of the draft vocabulary {traffic.coverage.value:.1%} against {samples.coverage.value:.1%}.",
            "The wiring is the same for both: this draft has seen too little text as long as that."
            if beyond
            else "The wiring is the same for both: this draft has seen too little text of the kind that is served.",
            "Train it on recorded traffic, answered by the target that is served.",
        )
    ]


def teacher_findings(last: LastState, first: Rate) -> list[Finding]:
    """``target.mismatch``: a trainer that reads the files as their layout says learns from another state.

    ``first``: the first position right under the measured wiring. An error where that is poor.
    """
    wrong = None not in (last.normed, last.claimed) and last.normed != last.claimed
    if not wrong and not last.foreign:
        return []
    poor = first.value is not None and first.value < GOOD_FIRST
    norm = "head(state)" if last.claimed else "head(norm(state))"
    return [
        Finding(
            "target.mismatch",
            "error" if poor and wrong else "warning",
            "the samples' last state",
            f"{last.summary()[0].upper()}{last.summary()[1:]}.",
            f"A trainer that takes {norm} for the target teaches its draft something else than the target says."
            if wrong
            else "Neither reading is what the target said: its rows are out of step, or another target made it.",
            "Dump the files again in the layout's meaning, or train with the other reading."
            if wrong
            else "Dump the files again with the target that is served.",
        )
    ]


def overlap(a: Rate, b: Rate) -> str:
    """Do the 95 % intervals overlap, in words."""
    if a.ci is None or b.ci is None:
        return "no interval"
    return "apart" if a.ci[1] < b.ci[0] or b.ci[1] < a.ci[0] else "overlap"


def _length(found: Rate) -> str:
    return f"{found.value:.2f}" + (f" ({found.ci[0]:.2f} to {found.ci[1]:.2f})" if found.ci else "")


def worse_on_traffic(found: Sequence[Finding]) -> bool:
    return any(
        finding.subject == "traffic" and finding.kind in ("quality.domain", "context.length") for finding in found
    )
