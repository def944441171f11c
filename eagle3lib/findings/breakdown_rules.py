"""03: what acceptance depends on: how far into the conversation, which kind of request, how many steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from eagle3lib.findings.finding import Finding
from eagle3lib.findings.inspection import Inspection
from eagle3lib.measuring.acceptance import Acceptance
from eagle3lib.measuring.rates import Difference, is_significant, paired_difference
from eagle3lib.measuring.steps import per_request
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.setting import Setting

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
    offline: pd.DataFrame, served: Mapping[str, pd.DataFrame], reports: Sequence[EngineReport], known: Sequence[Limit]
) -> list[Finding]:
    """Length and category, of the samples' predicted steps and of every report; steps in order where they are known."""
    found = category_findings("predicted for the samples", offline)
    for name, steps in served.items():
        found += category_findings(name, steps)
    for limit in known:
        found += length_findings("predicted for the samples", *step_sides(offline, limit.tokens), limit)
        for report in reports:
            steps = served.get(report.source)
            ordered = steps is not None and len(steps)
            sides = step_sides(steps, limit.tokens) if ordered else report_sides(report, limit.tokens)
            found += length_findings(report.source, *sides, limit)
    return found


def step_sides(steps: pd.DataFrame, tokens: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of each request, tokens given and verify steps (``per_request``) within ``tokens`` and beyond."""
    beyond = steps["at"] >= tokens
    return per_request(steps, ~beyond), per_request(steps, beyond)


def report_sides(report: EngineReport, tokens: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """As :func:`step_sides` where only totals are known: requests that end within, and prompts that start beyond."""
    near, far, nothing = [], [], (0, 0)
    for request in report.measured:
        prompt, counted = request.prompt_tokens, request.counted
        if prompt is None or counted is None:
            continue
        if prompt >= tokens:
            near, far = [*near, nothing], [*far, counted]
        elif prompt + (request.completion_tokens or counted[0]) <= tokens:
            near, far = [*near, counted], [*far, nothing]
    return pd.DataFrame(near, columns=("tokens", "steps")), pd.DataFrame(far, columns=("tokens", "steps"))


def length_findings(source: str, near: pd.DataFrame, far: pd.DataFrame, limit: Limit) -> list[Finding]:
    """``context.length`` or ``attention.window``: a length hit, acceptance falls beyond ``limit``.

    ``near`` and ``far``: tokens given and verify steps of the same requests on either side of it.
    """
    requests = int(min((near["steps"] > 0).sum(), (far["steps"] > 0).sum()))
    if requests < LEAST_REQUESTS:
        return []
    far_steps, all_steps = far["steps"].sum(), near["steps"].sum() + far["steps"].sum()
    usual, beyond = near["tokens"].sum() / near["steps"].sum(), far["tokens"].sum() / far_steps
    if beyond > (1 - SMALL_FALL) * usual:
        return []
    found = paired_difference(far["tokens"], far["steps"], near["tokens"], near["steps"])
    if not is_significant(found, requests):
        return []
    window = limit.kind == "attention.window"
    return [
        Finding(
            limit.kind,
            "error" if window else "warning",
            source,
            f"A length hit: accept length {usual:.2f} up to {limit.tokens} tokens ({limit.name}), "
            f"{beyond:.2f} beyond: {_span(found)}, {far_steps} of {all_steps} verify steps lie beyond.",
            "Drafts past that length are mostly wasted: long requests may be slower than without speculation.",
            "Serve the draft with the window it was trained with."
            if window
            else "Keep requests below that length, or train the draft on conversations as long as those served.",
        )
    ]


def category_findings(source: str, steps: pd.DataFrame) -> list[Finding]:
    """``quality.domain``: a kind of request whose steps seldom accept a first draft while the others' do."""
    labels = sorted(filter(None, steps["category"].unique()))
    found = []
    for label in labels:
        own = steps["category"] == label
        here, rest = per_request(steps, own), per_request(steps, ~own)
        requests = int(min((here["steps"] > 0).sum(), (rest["steps"] > 0).sum()))
        if requests < LEAST_REQUESTS:
            continue
        here_steps, rest_steps = here["steps"].sum(), rest["steps"].sum()
        low, usual = here["right"].sum() / here_steps, rest["right"].sum() / rest_steps
        if usual < POOR_STEP or low >= min(POOR_STEP, POOR_SHARE * usual):
            continue
        fall = paired_difference(here["right"], here["steps"], rest["right"], rest["steps"])
        if is_significant(fall, requests, len(labels)):
            found.append(
                Finding(
                    "quality.domain",
                    "warning",
                    f"{source}: {label}",
                    f"The first draft is accepted in {low:.0%} of {here_steps} verify steps of {label}, in "
                    f"{usual:.0%} of the others' {rest_steps}: {_span(fall)}.",
                    "The draft is fed rightly, or the others would fall too: it has seen too little text of this kind.",
                    f"Train it on more text like {label}, or serve such requests without speculation.",
                )
            )
    return found


def requested_tokens(report: EngineReport, launch: str, num_draft_tokens: int) -> int | None:
    """The draft tokens that somebody asked for, before the engine's own changes."""
    own = report.flags.get("speculative_num_draft_tokens")
    if isinstance(own, int):
        return own
    return num_draft_tokens or Launch.parse(launch).integer("speculative_num_draft_tokens")


def ceiling_findings(served: Acceptance, setting: Setting, asked: int | None) -> list[Finding]:
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
