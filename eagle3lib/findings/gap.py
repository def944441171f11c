"""Served acceptance beside predicted, on the same requests: how far apart, and in which shape.

The shapes have names: a *floor* accepts next to nothing; a *flat hit* lowers the first position and with it all
others; a *tail hit* leaves the first as it was and lowers those after it. A *length hit*, which grows with the
conversation, is told from the steps' places (``breakdown_rules.length_findings``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3lib.measuring.acceptance import Histogram, accepted_of, reached, steps_of
from eagle3lib.measuring.rates import Difference, is_significant, paired_difference

#: Fewer than one draft in ten verify steps: a wrongly fed draft guesses common words right that often (the
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
    "": "too few steps to tell which positions it hits",
}
FILES_AT_FAULT = ", and wired so these weights accept next to nothing: the files are where to look (01, 02)."


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

    def sentence(self) -> str:
        """The gap with its interval and what it means."""
        numbers = f"{self.source}: served {self.served:.3f}, predicted {self.predicted:.3f} on the same tokens"
        ci = self.difference.ci
        if ci is None:
            return f"{numbers}; one request gives no interval."
        low, high = (end / self.predicted for end in ci)
        span = f"95 % interval {low:+.0%} to {high:+.0%}, {self.requests} requests"
        if not self.seen:
            same = "The engine does what its files say" if low <= 0 <= high else "It is small, and more than chance"
            same += FILES_AT_FAULT if at_floor(self.predicted) else "."
            return f"{numbers}: no difference to speak of ({self.share:+.1%}; {span}). {same}"
        if self.share > 0:
            return (
                f"{numbers}: {self.share:.0%} above what these weights propose right ({span}). Acceptance is "
                "simulated or loosened, or another draft is served."
            )
        return (
            f"{numbers}: {-self.share:.0%} below what these weights can do ({span}). The engine feeds them something "
            f"else, or reads them differently; it looks like {SHAPES[self.shape]}."
        )


def at_floor(length: float, num_steps: int | None = None) -> bool:
    """Whether next to nothing is accepted; an unknown ``num_steps`` is taken for a chain's (2 or more)."""
    return length < (ONE_STEP_FLOOR if num_steps == 1 else FLOOR)


def gap(source: str, predicted: Sequence[Histogram], served: Sequence[Histogram]) -> Gap | None:
    """From a histogram per request, in the same order; ``None`` where either has no verify step."""
    steps, ideal_steps = [steps_of(h) for h in served], [steps_of(h) for h in predicted]
    tokens, ideal = _tokens(served), _tokens(predicted)
    found = paired_difference(tokens, steps, ideal, ideal_steps) if served else Difference(None, None)
    if found.value is None:
        return None
    here, expected = sum(tokens) / sum(steps), sum(ideal) / sum(ideal_steps)
    apart = Gap(source, here, expected, found, len(served), "")
    return replace(apart, shape=_shape(here, predicted, served)) if apart.seen else apart


def _tokens(histograms: Sequence[Histogram]) -> list[int]:
    return [accepted_of(h) + steps_of(h) for h in histograms]


def _shape(length: float, predicted: Sequence[Histogram], served: Sequence[Histogram]) -> str:
    """Which positions fall: the first, or only what comes after a right first one."""
    if at_floor(length):
        return "floor"
    now, before = [reached(h, 1) for h in served], [reached(h, 1) for h in predicted]
    first = paired_difference([r[1] for r in now], [r[0] for r in now], [r[1] for r in before], [r[0] for r in before])
    usual = sum(r[1] for r in before) / max(1, sum(r[0] for r in before))
    if is_significant(first, len(served)) and (first.value or 0) < -SMALL_GAP * usual:
        return "flat hit"
    later = paired_difference(_later(served), [r[1] for r in now], _later(predicted), [r[1] for r in before])
    first_kept = first.value is not None and first.value > -0.1 * usual
    return "tail hit" if first_kept and is_significant(later, len(served)) and (later.value or 0) < 0 else ""


def _later(histograms: Sequence[Histogram]) -> list[int]:
    """Drafts accepted after the first one."""
    return [accepted_of(h) - reached(h, 1)[1] for h in histograms]
