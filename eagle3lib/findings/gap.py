"""Served acceptance beside predicted, on the same requests: how far apart, and in which shape.

The shapes have names: a *floor* accepts next to nothing; a *flat hit* lowers the first position and with it all
others; a *tail hit* leaves the first as it was and lowers those after it. A *length hit*, which grows with the
conversation, shows in the steps' places (``breakdown_rules.length_findings``). And the wiring that responses show,
against the configured one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from eagle3lib.findings.catalogue import entry, kind_of_switch, make_finding
from eagle3lib.findings.finding import Finding, interval
from eagle3lib.findings.rules_layers import layer_difference
from eagle3lib.measuring.acceptance import Histogram, accepted_of, reached, steps_of
from eagle3lib.measuring.rates import Difference, is_significant, paired_difference
from eagle3lib.measuring.served_wiring import ServedWiring
from eagle3lib.reading.draft_config import SGLANG_AUX_KEY

#: Fewer than one draft in ten verify steps: a wrongly fed draft guesses common tokens right that often (the
#: incident's 1.0585), and a tenth more tokens a step do not pay for a chain's passes.
FLOOR = 1.1
#: One draft a step costs one pass and gives no second position: the same length asks more of the first one.
ONE_STEP_FLOOR = 1.05
#: Differences below this share of an accept length are left to the requests' last tokens.
SMALL_GAP = 0.03

#: shape -> what it means for where to look
SHAPES = {
    "floor": "a floor: next to nothing is accepted, so that map, head, algorithm or states are another's",
    "flat hit": "a flat hit: the first position falls and all others with it, so that what enters the draft is "
    "wrong from the first token (boundaries, their order, norms, embedding, head)",
    "tail hit": "a tail hit: the first position is as predicted and later ones fall, so that what the draft feeds "
    "back to itself differs (norm_output, later positions, a tree's keys)",
    "": "too few steps to know which positions it hits",
}
#: No edit goes with it: the config inspected asks for the right thing already.
_ELSEWHERE = (
    "The server runs another config or other code than the one inspected here: compare draft path, overrides and "
    "version in its /server_info."
)


@dataclass(frozen=True)
class Gap:
    """``difference``: served less predicted accept length, bonus counted in both."""

    source: str
    served: float
    predicted: float
    difference: Difference
    requests: int
    shape: str

    @property
    def share(self) -> float:
        """The difference as a share of the predicted accept length."""
        return (self.difference.value or 0.0) / self.predicted

    @property
    def seen(self) -> bool:
        """Beyond the 95 % interval, and large enough to matter.

        That is enough here: on the same tokens a healthy engine differs by rounding alone, not by chance.
        """
        ci = self.difference.ci
        return ci is not None and not ci[0] <= 0 <= ci[1] and abs(self.share) >= SMALL_GAP

    @property
    def numbers(self) -> str:
        """Both lengths, and how far they are apart."""
        apart = f"{self.difference.value:+.3f}{interval(self.difference.ci, '+.3f')} over {self.requests} requests"
        return (
            f"served accept length {self.served:.3f}, predicted {self.predicted:.3f} on the same tokens: "
            f"{self.share:+.1%}, a difference of {apart}"
        )

    def sentence(self) -> str:
        """The gap with its 95 % interval and what it means."""
        if self.difference.ci is None:
            meaning = "One request gives no interval."
        elif not self.seen:
            low, high = self.difference.ci
            same = "the engine does what its files ask for" if low <= 0 <= high else "it is small, and more than chance"
            floor = ", and wired so these weights accept next to nothing: look at the files (01, 02)"
            meaning = f"This is no difference to speak of: {same}{floor if at_floor(self.predicted) else ''}."
        elif self.share > 0:
            meaning = entry("flags.lossy", "measured").consequence
        else:
            meaning = f"{entry('acceptance.below_prediction').consequence} It looks like {SHAPES[self.shape]}."
        return f"{self.source}: {self.numbers}. {meaning}"


def at_floor(length: float, num_steps: int | None = None) -> bool:
    """Whether next to nothing is accepted; an unknown ``num_steps`` is taken for a chain's (2 or more)."""
    return length < (ONE_STEP_FLOOR if num_steps == 1 else FLOOR)


def gap(source: str, predicted: Sequence[Histogram], served: Sequence[Histogram]) -> Gap | None:
    """From a histogram per request, in the same order; ``None`` where either has no verify step."""
    now, before = _per_request(served), _per_request(predicted)
    found = paired_difference(now["tokens"], now["steps"], before["tokens"], before["steps"])
    if found.value is None:
        return None
    here, expected = (float(each["tokens"].sum() / each["steps"].sum()) for each in (now, before))
    apart = Gap(source, here, expected, found, len(served), "")
    return replace(apart, shape=_shape(here, now, before)) if apart.seen else apart


def _per_request(histograms: Sequence[Histogram]) -> pd.DataFrame:
    """As ``measuring.steps.per_request``, where only histograms are known."""
    rows = [(accepted_of(each) + steps_of(each), steps_of(each), reached(each, 1)[1]) for each in histograms]
    return pd.DataFrame(rows, columns=("tokens", "steps", "right"), dtype=int)


def _shape(length: float, now: pd.DataFrame, before: pd.DataFrame) -> str:
    """Which positions fall: the first, or only what comes after a right first one."""
    if at_floor(length):
        return "floor"
    first = paired_difference(now["right"], now["steps"], before["right"], before["steps"])
    usual, change = before["right"].sum() / before["steps"].sum(), first.value or 0.0
    if is_significant(first, len(now)) and change < -SMALL_GAP * usual:
        return "flat hit"
    after, usually = (
        each["tokens"] - each["steps"] - each["right"] for each in (now, before)
    )  # drafts after the first
    later = paired_difference(after, now["right"], usually, before["right"])
    tail = change > -0.1 * usual and is_significant(later, len(now)) and (later.value or 0) < 0
    return "tail hit" if tail else ""


def prediction_findings(source: str, predicted: Sequence[Histogram], served: Sequence[Histogram]) -> Iterator[Finding]:
    """Served against predicted accept length on the same requests, in the same order.

    Below: ``acceptance.below_prediction``. Above: ``flags.lossy``, for greedy serving accepts no more than
        the weights propose right. Silent where the interval of the difference holds 0.
    """
    found = gap(source, predicted, served)
    if found and found.seen and found.share < 0:
        shape = SHAPES[found.shape]
        evidence = f"{found.numbers}. {shape[0].upper()}{shape[1:]}"
        yield make_finding("acceptance.below_prediction", source, evidence)
    elif found and found.seen:
        yield make_finding("flags.lossy", source, found.numbers, case="measured")


def served_findings(found: ServedWiring, *, layers: int) -> Iterator[Finding]:
    """An error for each switch that was surely served otherwise than configured, a note where one is not sure.

    Silent where the configured wiring may be what was served, or where too little was accepted to decide.
    ``layers``: blocks of the target.
    """
    if found.answer in ("as configured", "undecided") or not found.best.decides:
        return
    if found.answer == "none":
        yield make_finding("acceptance.unexplained", found.source, found.summary())
        return
    here = found.as_configured
    evidence = (
        f"{found.source}: {found.summary()} The configured wiring predicts {here.exact.numerator} of "
        f"{here.exact.denominator} responses, {here.steps.numerator} of {here.steps.denominator} verify steps."
    )
    for switch, (configured, served) in found.configured.differences(found.best.wiring).items():
        possible = list(dict.fromkeys(_written(getattr(fit.wiring, switch)) for fit in found.possible))
        if switch == "boundaries":
            kind, subject = layer_difference(served, configured, layers), SGLANG_AUX_KEY
        else:
            kind, subject = kind_of_switch(switch), switch
        severity, effect = "note", f"{switch} may have been served as {_written(served)}: more responses would show it."
        if _written(configured) not in possible:
            severity = "error"
            effect = f"The engine served {switch} = {' or '.join(possible)}, not {_written(configured)} as configured."
        yield make_finding(kind, subject, evidence, severity=severity, consequence=effect, remedy=_ELSEWHERE)


def _written(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
