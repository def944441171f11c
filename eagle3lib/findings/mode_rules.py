"""03: two served runs of the same prompts that differ by one flag: ``engine.mode``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from eagle3lib.findings.finding import Finding
from eagle3lib.measuring.rates import is_significant, paired_difference, rate, unpaired_difference
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.run_flags import differing

#: Greedy runs in other modes round otherwise; smaller differences are left to that.
SMALL = 0.05
#: A run that differs by one of these is another experiment, not another mode: other weights, other numbers in
#: them, another prompt for the same text, another way to draw.
NOT_A_MODE = re.compile(
    r"speculative|model(?!_impl)|draft|quant|dtype|torchao|override|weight|revision|load_format|lora|"
    r"tokenizer|template|context_length|sampling_(defaults|params)|temperature|top_[pk]|penalty"
)


def mode_findings(reports: Sequence[EngineReport]) -> list[Finding]:
    """An error where the flags of both runs are known and differ by one.

    Without flags nothing: two files may just as well be two drafts, or one before and after its cure.
    """
    pairs = [(one, other, named) for one, other in combinations(reports, 2) if (named := _difference(one, other))]
    return [finding for one, other, named in pairs for finding in _compare(one, other, named, len(pairs))]


def _difference(one: EngineReport, other: EngineReport) -> str | None:
    """The one flag that tells the runs apart, in words; ``None`` where they are not to be compared."""
    if one.form != other.form or one.form in ("unmeasured", "average", "alpha"):
        return None
    prompts = [[request.prompt_tokens for request in report.requests] for report in (one, other)]
    if prompts[0] != prompts[1] and not any(None in lengths for lengths in prompts):
        return None
    flags = differing(one.flags, other.flags) if one.flags and other.flags else {}
    if len(flags) != 1 or any(map(NOT_A_MODE.search, flags)):
        return None
    ((name, values),) = flags.items()
    return f"only --{name.replace('_', '-')} differs ({_value(values[0])}, {_value(values[1])})"


def _value(value: Any) -> str:
    return "not given" if value is None else str(value)


def _compare(one: EngineReport, other: EngineReport, named: str, pairs: int) -> Iterator[Finding]:
    (tokens, steps), (base, base_steps) = _counts(one), _counts(other)
    lengths = [sum(t) / sum(s) for t, s in ((tokens, steps), (base, base_steps))]
    if abs(lengths[0] - lengths[1]) < SMALL * max(lengths):
        return
    if one.form != "window" and len(steps) == len(base_steps):
        found = paired_difference(tokens, steps, base, base_steps)
    else:
        found = unpaired_difference(rate(tokens, steps), rate(base, base_steps))
    if not is_significant(found, min(len(steps), len(base_steps)), pairs):
        return
    low, high = found.ci or (0.0, 0.0)
    lower, higher = sorted(zip(lengths, (one.source, other.source), strict=True))
    yield Finding(
        "engine.mode",
        "error",
        f"{one.source}, {other.source}",
        f"Accept length {lengths[0]:.2f} in {one.source}, {lengths[1]:.2f} in {other.source}: {named}; a difference of "
        f"{found.value:+.2f} ({low:+.2f} to {high:+.2f}).",
        f"The same draft accepts {1 - lower[0] / higher[0]:.0%} less in {lower[1]}: the engine's mode changes what it "
        "computes or accepts.",
        f"Serve as in {higher[1]}, and report the difference to the engine's authors with both launch lines.",
    )


def _counts(report: EngineReport) -> tuple[list[float], list[float]]:
    """Tokens given and verify steps of each request; of a log window its mean, weighted."""
    pairs = [each.counted or (each.stated["accept_length"] * each.weight, each.weight) for each in report.measured]
    return [given for given, _ in pairs], [count for _, count in pairs]
