"""03: what acceptance depends on: how far into the conversation, which kind of request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from eagle3lib.findings.catalogue import make_finding
from eagle3lib.findings.finding import Finding, interval
from eagle3lib.findings.inspection import Inspection
from eagle3lib.measuring.rates import is_significant, paired_difference
from eagle3lib.measuring.steps import per_request
from eagle3lib.reading.engine_reports import EngineReport

#: A fall below this share of the rest is left to the texts.
SMALL_FALL = 0.1
#: So many requests on either side, else a single odd one decides.
LEAST_REQUESTS = 3
#: A kind of request is poor where its verify steps accept their first draft less often than this, and at most in
#: this share of what the others do. (Of steps, not of all starts: a step begins where a chain ended.)
POOR_STEP, POOR_SHARE = 0.4, 0.75
#: A length at which acceptance falls is looked for at so many places, where no file gives one. Kinds of text differ by
#: less than this share of the accepted drafts.
PLACES, LARGE_FALL = 8, 0.5

SAMPLES = "predicted for the samples"


@dataclass(frozen=True)
class Limit:
    """A length in tokens beyond which, by its files, this draft was not trained."""

    tokens: int
    kind: str  # of the finding
    name: str


def limits(inspection: Inspection) -> list[Limit]:
    """Where the draft's positions end, and where its window does if it is served with another one."""
    found = []
    trained, served = inspection.trained.switches.window, inspection.served.wiring
    if served is not None and trained != served.window:
        nearest = min(window for window in (trained, served.window) if window is not None)
        found.append(Limit(nearest, "attention.window", f"window trained {trained}, served {served.window}"))
    if inspection.draft.max_positions:
        found.append(Limit(inspection.draft.max_positions, "context.length", "the draft's max_position_embeddings"))
    return found


def dependence_findings(
    offline: pd.DataFrame, served: Mapping[str, pd.DataFrame], reports: Sequence[EngineReport], known: Sequence[Limit]
) -> Iterator[Finding]:
    """Length and category, of the samples' predicted steps and of every report; steps in order where they are known."""
    for name, steps in {SAMPLES: offline, **served}.items():
        yield from category_findings(name, steps)
    for limit in known:
        yield from length_findings(SAMPLES, *step_sides(offline, limit.tokens), limit)
    for report in reports:
        steps = served.get(report.source, pd.DataFrame())
        at_limits = [
            found
            for limit in known
            for found in length_findings(report.source, *_sides(report, steps, limit.tokens), limit)
        ]
        yield from at_limits or sudden_fall(report, steps)


def _sides(report: EngineReport, steps: pd.DataFrame, tokens: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    return report_sides(report, tokens) if steps.empty else step_sides(steps, tokens)


def sudden_fall(report: EngineReport, steps: pd.DataFrame) -> Iterator[Finding]:
    """``context.length`` at a length that no file gives: where the accepted drafts fall most, to half or less."""
    lengths = [each.prompt_tokens for each in report.measured if each.prompt_tokens is not None and each.counted]
    at = pd.Series(lengths, dtype=int) if steps.empty else steps["at"]
    places = sorted(set(at.quantile([n / (PLACES + 1) for n in range(1, PLACES + 1)], "higher"))) if len(at) else []
    falls = []
    for tokens in places:
        near, far = _sides(report, steps, tokens)
        fall = _fall("tokens", far, near, len(places))
        if fall and fall.here - 1 <= (1 - LARGE_FALL) * (fall.rest - 1):
            falls.append((fall.here - fall.rest, tokens, near, far))
    if falls:
        _, tokens, near, far = min(falls, key=lambda each: each[:2])
        yield from length_findings(report.source, near, far, Limit(tokens, "context.length", "by its own requests"))


def step_sides(steps: pd.DataFrame, tokens: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of each request, tokens given and verify steps (``per_request``) within ``tokens`` and beyond."""
    beyond = steps["at"] >= tokens
    return per_request(steps, ~beyond), per_request(steps, beyond)


def report_sides(report: EngineReport, tokens: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """As :func:`step_sides` where only totals are known: requests that end within, and prompts that start beyond."""
    known = [each for each in report.measured if each.prompt_tokens is not None and each.counted]
    counts = pd.DataFrame([each.counted for each in known], columns=("tokens", "steps"))
    starts = pd.Series([each.prompt_tokens for each in known], dtype=int)
    ends = starts + pd.Series([each.completion_tokens or each.counted[0] for each in known], dtype=int)
    far = starts >= tokens
    near = ~far & (ends <= tokens)
    return counts.mul(near, axis=0)[near | far], counts.mul(far, axis=0)[near | far]


@dataclass(frozen=True)
class _Fall:
    """A count a verify step in some steps, ``here``, and in the other ones; it was shown to differ."""

    here: float
    rest: float
    steps: tuple[int, int]
    evidence: str  # the difference


def _fall(column: str, here: pd.DataFrame, rest: pd.DataFrame, comparisons: int = 1) -> _Fall | None:
    """Of the same requests on two sides (``per_request``); ``None`` where chance alone may give the difference."""
    requests = int(min((here["steps"] > 0).sum(), (rest["steps"] > 0).sum()))
    if requests < LEAST_REQUESTS:
        return None
    found = paired_difference(here[column], here["steps"], rest[column], rest["steps"])
    if not is_significant(found, requests, comparisons):
        return None
    steps = int(here["steps"].sum()), int(rest["steps"].sum())
    shares = here[column].sum() / steps[0], rest[column].sum() / steps[1]
    return _Fall(*shares, steps, f"a difference of {found.value:+.2f}{interval(found.ci, '+.2f')}")


def length_findings(source: str, near: pd.DataFrame, far: pd.DataFrame, limit: Limit) -> Iterator[Finding]:
    """``context.length`` or ``attention.window``: a length hit, acceptance falls beyond ``limit``.

    ``near`` and ``far``: tokens given and verify steps of the same requests on either side of it.
    """
    fall = _fall("tokens", far, near)
    if fall and fall.here <= (1 - SMALL_FALL) * fall.rest:
        what = (
            f"A length hit: accept length {fall.rest:.2f} up to {limit.tokens} tokens ({limit.name}), {fall.here:.2f} "
            f"beyond: {fall.evidence}, {fall.steps[0]} of {sum(fall.steps)} verify steps lie beyond."
        )
        yield make_finding(limit.kind, source, what, case="measured")


def category_findings(source: str, steps: pd.DataFrame) -> Iterator[Finding]:
    """``quality.domain``: a kind of request whose steps seldom accept a first draft while the others' do."""
    labels = sorted(filter(None, steps["category"].unique()))
    for label in labels:
        own = steps["category"] == label
        fall = _fall("right", per_request(steps, own), per_request(steps, ~own), len(labels))
        if fall and fall.rest >= POOR_STEP and fall.here < min(POOR_STEP, POOR_SHARE * fall.rest):
            what = (
                f"The first draft is accepted in {fall.here:.0%} of {fall.steps[0]} verify steps of {label}, in "
                f"{fall.rest:.0%} of the others' {fall.steps[1]}: {fall.evidence}."
            )
            yield make_finding("quality.domain", f"{source}: {label}", what)
