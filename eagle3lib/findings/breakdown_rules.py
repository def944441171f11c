"""03: what acceptance depends on: how far into the conversation, which kind of request, how many steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle3lib.findings.finding import Finding
from eagle3lib.findings.rule import Inspection
from eagle3lib.measuring.acceptance import Acceptance
from eagle3lib.measuring.rates import Difference, paired_difference
from eagle3lib.measuring.significance import is_significant
from eagle3lib.measuring.trails import Trail
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.points import Asked

#: A fall below this share of the rest is left to the texts.
SMALL_FALL = 0.1
#: So many requests on either side, else a single odd one decides.
LEAST_REQUESTS = 3
#: A kind of request is poor where its verify steps accept their first draft less often than this, and at most in
#: this share of what the others do. (Of steps, not of all starts: a step begins where a chain ended.)
POOR_STEP, POOR_SHARE = 0.4, 0.75
#: Steps that show where acceptance ends.
CEILING_STEPS = 50


@dataclass(frozen=True)
class Limit:
    """A length in tokens beyond which the files say that this draft is on unknown ground."""

    tokens: int
    kind: str  # of the finding
    name: str


def limits(inspection: Inspection) -> list[Limit]:
    """Where the draft's positions end, and where its window does if it is served with another one."""
    found = []
    trained, served = inspection.trained.switches.window, inspection.served.wiring
    window = None if served is None else served.window
    if trained != window and served is not None:
        nearest = min(w for w in (trained, window) if w is not None)
        found.append(Limit(nearest, "attention.window", f"window trained {trained}, served {window}"))
    if inspection.draft.max_positions:
        found.append(Limit(inspection.draft.max_positions, "context.length", "the draft's max_position_embeddings"))
    return found


def dependence_findings(
    offline: Sequence[Trail], served: Mapping[str, Sequence[Trail]], reports: Sequence[EngineReport],
    known: Sequence[Limit],
) -> list[Finding]:  # fmt: skip
    """Length and category, of the samples' predicted steps and of every report; steps in order where they are known."""
    found = category_findings("predicted for the samples", offline)
    for name, trails in served.items():
        found += category_findings(name, trails)
    for limit in known:
        found += length_findings("predicted for the samples", trail_sides(offline, limit.tokens), limit)
        for report in reports:
            trails = served.get(report.source)
            sides = trail_sides(trails, limit.tokens) if trails else report_sides(report, limit.tokens)
            found += length_findings(report.source, sides, limit)
    return found


#: (tokens given, verify steps) of one request on one side of a length.
_Side = tuple[int, int]


def trail_sides(trails: Sequence[Trail], tokens: int) -> list[tuple[_Side, _Side]]:
    """Each request's steps within ``tokens`` and beyond."""

    def side(trail: Trail, beyond: bool) -> _Side:
        steps = [step.accepted for step in trail.steps if (step.at >= tokens) == beyond]
        return sum(steps) + len(steps), len(steps)

    return [(side(trail, False), side(trail, True)) for trail in trails]


def report_sides(report: EngineReport, tokens: int) -> list[tuple[_Side, _Side]]:
    """As :func:`trail_sides` where only totals are known: requests that end within, and prompts that start beyond."""
    found = []
    for request in report.measured:
        prompt, counted = request.prompt_tokens, request.counted
        if prompt is None or counted is None:
            continue
        if prompt >= tokens:
            found.append(((0, 0), counted))
        elif prompt + (request.completion_tokens or counted[0]) <= tokens:
            found.append((counted, (0, 0)))
    return found


def length_findings(source: str, sides: Sequence[tuple[_Side, _Side]], limit: Limit) -> list[Finding]:
    """``context.length`` or ``attention.window``: a length hit, acceptance falls beyond ``limit``."""
    near, near_steps = [side[0][0] for side in sides], [side[0][1] for side in sides]
    far, far_steps = [side[1][0] for side in sides], [side[1][1] for side in sides]
    requests = min(sum(map(bool, near_steps)), sum(map(bool, far_steps)))
    if requests < LEAST_REQUESTS:
        return []
    usual, beyond = sum(near) / sum(near_steps), sum(far) / sum(far_steps)
    if beyond > (1 - SMALL_FALL) * usual:
        return []
    found = paired_difference(far, far_steps, near, near_steps)
    if not is_significant(found, requests):
        return []
    window = limit.kind == "attention.window"
    return [
        Finding(
            limit.kind,
            "error" if window else "warning",
            source,
            f"A length hit: accept length {usual:.2f} up to {limit.tokens} tokens ({limit.name}), "
            f"{beyond:.2f} beyond: {_span(found)}, {sum(far_steps)} of "
            f"{sum(near_steps) + sum(far_steps)} verify steps lie beyond.",
            "Drafts past that length are mostly wasted: long requests may be slower than without speculation.",
            "Serve the draft with the window it was trained with."
            if window
            else "Keep requests below that length, or train the draft on conversations as long as those served.",
        )
    ]


def category_findings(source: str, trails: Sequence[Trail]) -> list[Finding]:
    """``quality.domain``: a kind of request whose steps seldom accept a first draft while the others' do."""
    labels = sorted({trail.category for trail in trails if trail.category})
    found = []
    for label in labels:
        own = [trail.category == label for trail in trails]
        right = [sum(step.accepted > 0 for step in trail.steps) for trail in trails]
        steps = [len(trail.steps) for trail in trails]
        here, here_steps = _only(right, own), _only(steps, own)
        rest, rest_steps = _only(right, [not o for o in own]), _only(steps, [not o for o in own])
        if min(sum(map(bool, here_steps)), sum(map(bool, rest_steps))) < LEAST_REQUESTS:
            continue
        low, usual = sum(here) / sum(here_steps), sum(rest) / sum(rest_steps)
        if usual < POOR_STEP or low >= min(POOR_STEP, POOR_SHARE * usual):
            continue
        fall = paired_difference(here, here_steps, rest, rest_steps)
        if is_significant(fall, min(sum(map(bool, here_steps)), sum(map(bool, rest_steps))), len(labels)):
            found.append(
                Finding(
                    "quality.domain",
                    "warning",
                    f"{source}: {label}",
                    f"The first draft is accepted in {low:.0%} of {sum(here_steps)} verify steps of {label}, in "
                    f"{usual:.0%} of the others' {sum(rest_steps)}: {_span(fall)}.",
                    "The draft is fed rightly, or the others would fall too: it has seen too little text of this kind.",
                    f"Train it on more text like {label}, or serve such requests without speculation.",
                )
            )
    return found


def _only(counts: Sequence[int], chosen: Sequence[bool]) -> list[int]:
    return [count if mine else 0 for count, mine in zip(counts, chosen, strict=True)]


def asked_tokens(report: EngineReport, launch: str, num_draft_tokens: int) -> int | None:
    """The draft tokens that somebody asked for, before the engine's own changes."""
    own = report.flags.get("speculative_num_draft_tokens")
    if isinstance(own, int):
        return own
    return num_draft_tokens or Launch.parse(launch).integer("speculative_num_draft_tokens")


def ceiling_findings(served: Acceptance, setting: Asked, asked: int | None) -> list[Finding]:
    """``flags.steps_tokens``: steps end lower than the draft tokens that were asked for let one expect."""
    histogram, (num_steps, topk, _) = served.histogram or (), setting
    deepest = max((accepted for accepted, steps in enumerate(histogram) if steps), default=0)
    ceiling = num_steps or deepest
    if topk not in (None, 1) or asked is None or asked <= ceiling + 1 or deepest > ceiling:
        return []
    full = histogram[ceiling] if ceiling < len(histogram) else 0
    if sum(histogram) < CEILING_STEPS or (num_steps is None and full < CEILING_STEPS / 2):
        return []
    return [
        Finding(
            "flags.steps_tokens",
            "warning",
            f"{served.source} --speculative-num-draft-tokens",
            f"{asked} draft tokens were asked for, and none of {sum(histogram)} verify steps accepted more than "
            f"{ceiling}; {full} of them accepted all {ceiling}.",
            f"A chain drafts one token a step: no accept length can exceed {ceiling + 1}, whatever the draft.",
            "Set --speculative-num-steps to what is wanted, and --speculative-num-draft-tokens to one more.",
        )
    ]


def _span(found: Difference) -> str:
    low, high = found.ci or (0.0, 0.0)
    return f"a difference of {found.value:+.2f} ({low:+.2f} to {high:+.2f})"
