"""One wiring held against served responses: on which verify steps does it predict what was accepted?

Most steps of a poor draft accept nothing, and any wrong wiring predicts that. So wirings are told apart by the
*telling* steps alone, those that accept a draft in fact or in the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3lib.maths.draft import Draft
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.prediction import Prediction, predict
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.measuring.wiring_candidates import describe
from eagle3lib.reading.engine_reports import RequestReport
from eagle3lib.reading.setting import Setting

#: A wiring fits when it predicts this share of the telling steps, but for as many as rounding to bfloat16 costs: one
#: verify step in a hundred, which is much where a draft is so poor that few are telling.
FITS, ROUNDED = 0.9, 0.01
#: Fewer telling steps than this say nothing.
FEWEST = 10
#: One wiring is surely worse than another when it misses ``FACTOR`` times as many verify steps and ``LEAD`` more. Were
#: both equally wrong, a step that one of them misses would be a fair coin: b misses beside 3 b + 10 have at most the
#: chance 2**-10 that 10 beside none have, so that one in twenty of some fifty wirings tried wins by luck.
FACTOR, LEAD = 3, 10
#: Misses of one response come together: past a wrong step all later ones of a bare histogram may stand elsewhere. So
#: the difference in misses, d a response, must be ``SURE`` of its standard errors: sum(d) >= SURE * sqrt(sum(d * d)),
#: which takes SURE**2 = 4 responses at least (Cauchy-Schwarz).
SURE = 2


@dataclass(frozen=True)
class Match:
    """Verify steps compared; ``told`` of ``telling`` ones, which are among them, as they were predicted.

    ``predicted``: the prediction itself, a count a step where the order is known, else a histogram, which shows next to
    nothing until it is right to the last step: wirings of one accept rate have much the same.
    """

    equal: int
    steps: int
    told: int
    telling: int
    predicted: tuple[int | None, ...]

    @property
    def missed(self) -> int:
        return self.steps - self.equal


@dataclass(frozen=True)
class Fit:
    """A wiring held against every response. ``change``: what it changes against the configured one, in words.

    ``exact``: responses predicted without a miss; ``steps``: verify steps predicted; ``telling``: those of them that
    accept a draft, served or predicted, on which wirings are ranked.
    """

    wiring: Wiring
    change: str
    matches: tuple[Match, ...] = field(repr=False)
    exact: Rate
    steps: Rate
    telling: Rate

    @classmethod
    def of(cls, wiring: Wiring, configured: Wiring, matches: Sequence[Match]) -> Fit:
        return cls(
            wiring, describe(wiring, configured), tuple(matches),
            rate([not m.missed for m in matches], [1] * len(matches)),
            rate([m.equal for m in matches], [m.steps for m in matches]),
            rate([m.told for m in matches], [m.telling for m in matches]),
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        """Near enough to what was served, on enough steps; or without a single miss."""
        if not any(match.missed for match in self.matches):
            return True
        telling, rounded = self.telling.denominator or 0, ROUNDED * (self.steps.denominator or 0)
        return self.tells and (self.telling.numerator or 0) >= FITS * (telling - rounded)

    @property
    def tells(self) -> bool:
        """Enough is accepted, served or predicted, to say anything."""
        return (self.telling.denominator or 0) >= FEWEST

    def differs(self, other: Fit) -> int:
        """Responses that the two predict differently."""
        return sum(a.predicted != b.predicted for a, b in zip(self.matches, other.matches, strict=True))

    def needed(self, other: Fit) -> int | None:
        """How many responses like these make ``other`` surely the worse; ``None``: no number of them."""
        mine, theirs = [m.missed for m in self.matches], [m.missed for m in other.matches]
        lead, n = sum(theirs) - FACTOR * sum(mine), len(mine)
        if lead <= 0:
            return None
        squares = sum((there - here) ** 2 for here, there in zip(mine, theirs, strict=True))
        return max(math.ceil(n * LEAD / lead), math.ceil(n * SURE**2 * squares / (sum(theirs) - sum(mine)) ** 2))

    def beats(self, other: Fit) -> bool:
        """Surely nearer to what was served: as many responses as it needs were seen."""
        needed = self.needed(other)
        return needed is not None and needed <= len(self.matches)

    def to_json(self) -> dict[str, Any]:
        rates = {"exact": self.exact, "steps": self.steps, "telling": self.telling}
        return {"change": self.change, "boundaries": self.wiring.boundaries, **rates}


def match(draft: Draft, wiring: Wiring, sample_states: SampleStates, request: RequestReport, setting: Setting) -> Match:
    """``setting`` as served; a chain in order may be held against fewer steps, deeper drafts are then not looked at."""
    prediction = predict(draft, wiring, sample_states, setting)
    if request.steps:
        return _in_order(prediction, request.steps, setting[0])
    return _counted(prediction, request.histogram or (), setting[0])


def _in_order(prediction: Prediction, steps: tuple[int, ...], most: int) -> Match:
    """Each step at its own start; steps that nothing is predicted of, past the known tokens, are left out."""
    starts = [0]
    for accepted in steps[:-1]:
        starts.append(starts[-1] + accepted + 1)
    predicted = tuple(prediction.runs[at] if at < len(prediction.runs) else None for at in starts)
    pairs = [(p, min(s, most)) for p, s in zip(predicted, steps, strict=True) if p is not None]
    telling = [(p, s) for p, s in pairs if p or s]
    return Match(sum(p == s for p, s in pairs), len(pairs), sum(p == s for p, s in telling), len(telling), predicted)


def _counted(prediction: Prediction, histogram: Sequence[int], num_steps: int) -> Match:
    """Histograms: what both have is equal, at best. A last step that cannot be predicted is taken as it was served."""
    served = [*histogram, *[0] * (num_steps + 1 - len(histogram))]
    counts = list(prediction.steps.histogram(len(served) - 1))
    if not prediction.steps.complete:
        open_ones = [j for j, (mine, theirs) in enumerate(zip(counts, served, strict=True)) if mine < theirs]
        for accepted in open_ones[-1:]:
            counts[accepted] += 1
    both = [min(pair) for pair in zip(counts, served, strict=True)]
    either = [max(pair) for pair in zip(counts, served, strict=True)]
    return Match(sum(both), max(sum(served), sum(counts)), sum(both[1:]), sum(either[1:]), tuple(counts))
