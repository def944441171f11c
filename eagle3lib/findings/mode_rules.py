"""03: two served runs of the same prompts that differ by one flag: ``engine.mode``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from eagle3lib.findings.finding import Finding, Severity
from eagle3lib.measuring.acceptance import accepted_of, steps_of
from eagle3lib.measuring.conclusive import conclusive
from eagle3lib.measuring.rates import Gain, gain, rate
from eagle3lib.reading.engine_reports import EngineReport, RequestReport
from eagle3lib.reading.run_flags import differing

#: Greedy runs in other modes round otherwise; smaller differences are left to that.
SMALL = 0.05
#: A run that differs by one of these is another experiment, not another mode.
NOT_A_MODE = ("speculative", "model", "draft", "quantization", "dtype", "kv_cache_dtype", "json_model_override_args")


def mode_findings(reports: Sequence[EngineReport]) -> list[Finding]:
    """An error where the flags of both runs are known and differ by one; a warning where only the names of the
    files tell the runs apart, and both asked the same prompts for as many draft tokens."""
    pairs = [(one, other, named) for one, other in combinations(reports, 2) if (named := _difference(one, other))]
    return [finding for one, other, named in pairs for finding in _compare(one, other, named, len(pairs))]


def _difference(one: EngineReport, other: EngineReport) -> tuple[str, Severity] | None:
    """What tells the runs apart, in words, and how sure that is; ``None`` where they are not to be compared."""
    if one.form != other.form or one.form in ("unmeasured", "average", "alpha"):
        return None
    prompts = [[request.prompt_tokens for request in report.requests] for report in (one, other)]
    if prompts[0] != prompts[1] and not any(None in lengths for lengths in prompts):
        return None
    if one.flags and other.flags:
        flags = differing(one.flags, other.flags)
        if len(flags) != 1 or any(name.startswith(NOT_A_MODE) for name in flags):
            return None
        ((name, values),) = flags.items()
        return f"only --{name.replace('_', '-')} differs ({_value(values[0])}, {_value(values[1])})", "error"
    asked = [(request.prompt_tokens, _budget(request)) for request in one.requests]
    same = asked == [(request.prompt_tokens, _budget(request)) for request in other.requests]
    if one.flags or other.flags or not same or not asked or any(None in pair for pair in asked):
        return None
    return "the same prompts and draft tokens; what else differs, only the names of the files can tell", "warning"


def _value(value: Any) -> str:
    return "not given" if value is None else str(value)


def _budget(request: RequestReport) -> int | None:
    steps = request.verify_steps or steps_of(request.histogram or ())
    return None if not steps or request.proposed is None else round(request.proposed / steps)


def _compare(one: EngineReport, other: EngineReport, named: tuple[str, Severity], pairs: int) -> Iterator[Finding]:
    (tokens, steps), (base, base_steps) = _counts(one), _counts(other)
    lengths = [sum(t) / sum(s) for t, s in ((tokens, steps), (base, base_steps))]
    if abs(lengths[0] - lengths[1]) < SMALL * max(lengths):
        return
    if one.form != "window" and len(steps) == len(base_steps):
        found = gain(tokens, steps, base, base_steps)
    else:
        found = _apart(rate(tokens, steps).ci, rate(base, base_steps).ci, lengths[0] - lengths[1])
    if not conclusive(found, min(len(steps), len(base_steps)), pairs):
        return
    words, severity = named
    low, high = found.ci or (0.0, 0.0)
    lower, higher = sorted(zip(lengths, (one.source, other.source), strict=True))
    yield Finding(
        "engine.mode",
        severity,
        f"{one.source}, {other.source}",
        f"Accept length {lengths[0]:.2f} in {one.source}, {lengths[1]:.2f} in {other.source}: {words}; a difference of "
        f"{found.value:+.2f} ({low:+.2f} to {high:+.2f}).",
        f"The same draft accepts {1 - lower[0] / higher[0]:.0%} less in {lower[1]}: the engine's mode changes what it "
        "computes or accepts.",
        f"Serve as in {higher[1]}, and report the difference to the engine's authors with both launch lines.",
    )


def _counts(report: EngineReport) -> tuple[list[float], list[float]]:
    """Tokens given and verify steps of each request; of a log window its mean, weighted."""
    tokens, steps = [], []
    for request in report.measured:
        if report.form == "window":
            count, given = request.weight, request.stated["accept_length"] * request.weight
        else:
            count = request.verify_steps or steps_of(request.histogram or ())
            accepted = accepted_of(request.histogram) if request.histogram else request.accepted
            given = (request.completion_tokens or 0) if accepted is None else accepted + count
        tokens.append(given)
        steps.append(count)
    return tokens, steps


def _apart(one: tuple[float, float] | None, other: tuple[float, float] | None, value: float) -> Gain:
    """The difference of two rates measured apart: their intervals' half widths add in squares."""
    if one is None or other is None:
        return Gain(value, None)
    half = math.hypot((one[1] - one[0]) / 2, (other[1] - other[0]) / 2)
    return Gain(value, (value - half, value + half))
