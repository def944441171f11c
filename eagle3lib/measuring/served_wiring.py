"""The wiring that an engine really used, read from ordinary responses: no hook, no restart.

The prediction of greedy serving is exact, so it can be turned round: the wiring whose prediction is what was
served is the one that was served. Most steps of a poor draft accept nothing, and any wrong wiring predicts that. So
wirings are compared on the *informative* steps alone, those that accept a draft in fact or in the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.prediction import Prediction, predict
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.measuring.sample_states import Progress, SampleStates, sample_states, spread
from eagle3lib.measuring.wiring_candidates import CandidateSearch, describe, least_changed
from eagle3lib.reading.engine_reports import EngineReport, RequestReport
from eagle3lib.reading.setting import Setting

Answer = Literal["as configured", "another wiring", "undecided", "none"]

#: Responses used, spread evenly; and those with most accepted drafts, used in cheap passes.
RESPONSES, SCREENED = 16, 3
#: A finished request: its tokens with the target's states, and what the engine reports.
Response = tuple[SampleStates, RequestReport]
#: A wiring fits when it predicts this share of the informative steps, but for as many as rounding to bfloat16 costs:
#: one verify step in a hundred, which is much where a draft is so poor that few are informative.
FITS, ROUNDED = 0.9, 0.01
#: Fewer informative steps than this decide nothing.
FEWEST = 10
#: One wiring is surely worse than another when it misses ``FACTOR`` times as many verify steps and ``LEAD`` more. Were
#: both equally wrong, a step that one of them misses would be a fair coin: b misses beside 3 b + 10 have at most the
#: chance 2**-10 that 10 beside none have, so that one in twenty of some fifty wirings tried wins by luck.
FACTOR, LEAD = 3, 10
#: Misses of one response come together: past a wrong step all later ones of a bare histogram may be shifted. So
#: the difference in misses, d a response, must be ``SURE`` of its standard errors: sum(d) >= SURE * sqrt(sum(d * d)),
#: which takes SURE**2 = 4 responses at least (Cauchy-Schwarz).
SURE = 2


@dataclass(frozen=True)
class Match:
    """Verify steps compared; of them ``informative``, and ``informative_equal`` of those as predicted.

    ``predicted``: the prediction itself, a count a step where the order is known, else a histogram, which shows next to
    nothing until it is right to the last step: wirings of one accept rate have much the same.
    """

    equal: int
    steps: int
    informative_equal: int
    informative: int
    predicted: tuple[int | None, ...]

    @property
    def missed(self) -> int:
        return self.steps - self.equal


@dataclass(frozen=True)
class Fit:
    """A wiring held against every response. ``change``: what it changes against the configured one, as text.

    ``exact``: responses predicted without a miss; ``steps``: verify steps predicted; ``informative``: those of them
    that accept a draft, served or predicted, on which wirings are ranked.
    """

    wiring: Wiring
    change: str
    matches: tuple[Match, ...] = field(repr=False)
    exact: Rate
    steps: Rate
    informative: Rate

    @classmethod
    def of(cls, wiring: Wiring, configured: Wiring, matches: Sequence[Match]) -> Fit:
        return cls(
            wiring, describe(wiring, configured), tuple(matches),
            rate([not m.missed for m in matches], [1] * len(matches)),
            rate([m.equal for m in matches], [m.steps for m in matches]),
            rate([m.informative_equal for m in matches], [m.informative for m in matches]),
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        """Near enough to what was served, on enough steps; or without a single miss."""
        if not any(match.missed for match in self.matches):
            return True
        informative, rounded = self.informative.denominator or 0, ROUNDED * (self.steps.denominator or 0)
        return self.decides and (self.informative.numerator or 0) >= FITS * (informative - rounded)

    @property
    def decides(self) -> bool:
        """Enough is accepted, served or predicted, to decide anything."""
        return (self.informative.denominator or 0) >= FEWEST

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
        rates = {"exact": self.exact, "steps": self.steps, "telling": self.informative}
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
    informative = [(p, s) for p, s in pairs if p or s]
    return Match(
        sum(p == s for p, s in pairs), len(pairs), sum(p == s for p, s in informative), len(informative), predicted
    )


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


@dataclass(frozen=True)
class ServedWiring:
    """What one source's responses show of the wiring. ``fits``: those measured in full, best first (``_ranked``).

    ``passes``: the work done, in forward passes over all responses at full depth.
    """

    source: str
    configured: Wiring
    fits: tuple[Fit, ...]
    passes: float

    @property
    def best(self) -> Fit:
        return self.fits[0]

    @property
    def runner_up(self) -> Fit | None:
        """The next one that predicts something else."""
        return next((fit for fit in self.fits[1:] if fit.differs(self.best)), None)

    @property
    def as_configured(self) -> Fit:
        return next(fit for fit in self.fits if fit.wiring == self.configured)

    @property
    def ties(self) -> tuple[Fit, ...]:
        """Wirings that these responses cannot distinguish from the best, as all of them are predicted alike."""
        return tuple(fit for fit in self.fits[1:] if not fit.differs(self.best))

    @property
    def possible(self) -> tuple[Fit, ...]:
        """The best and every wiring that it does not surely beat."""
        return tuple(fit for fit in self.fits if not self.best.beats(fit))

    @property
    def answer(self) -> Answer:
        if not self.best.fits:
            return "none" if self.best.decides else "undecided"
        if self.best.wiring == self.configured:
            return "as configured"
        return "undecided" if self.as_configured in self.possible else "another wiring"

    def summary(self) -> str:
        """The answer in one sentence or two."""
        best, rival = self.best, self.runner_up
        exact, steps = (f"{each.numerator} of {each.denominator}" for each in (best.exact, best.steps))
        share = f"{exact} responses exactly, {steps} verify steps"
        if not best.decides:
            return f"Too few drafts were accepted to decide: {best.informative.denominator} verify steps with one."
        if self.answer == "none":
            return f"No wiring tried predicts what was served; the nearest, {best.change}, has {share}."
        text = f"What was served is what this wiring predicts: {best.change} ({share})."
        if rival:
            needed, distinguished = best.needed(rival), "distinguished" if best.beats(rival) else "not distinguished"
            text += (
                f" Runner-up: {rival.change} ({rival.exact.numerator} responses, {rival.steps.numerator} steps), "
                f"{distinguished} beyond chance; they differ on {best.differs(rival)} "
                f"of {len(best.matches)} responses, and {needed or 'no number'} like these would distinguish them."
            )
        if self.ties:
            text += f" Not distinguishable from it here: {' / '.join(fit.change for fit in self.ties)}."
        return text

    def to_json(self) -> dict[str, Any]:
        fits = [{**fit.to_json(), "needed": self.best.needed(fit)} for fit in self.fits]
        fields = {"source": self.source, "answer": self.answer, "words": self.summary()}
        return {**fields, "passes": self.passes, "fits": fits}


def served_wiring(
    reports: Sequence[EngineReport], draft: Draft, configured: Wiring, target: Target, *,
    ids: Sequence[int] | None = None, bases: Sequence[float] = (), progress: Progress = lambda share, what: None,
) -> list[ServedWiring]:  # fmt: skip
    """An answer for every report whose requests carry their token ids and a histogram; see ``predict_reports``.

    Args:
        ids: the capture ids as the config spells them; ``bases``: further RoPE bases. Each adds wirings to try.
        progress: called with the share done and what is tried next.
    """
    found = []
    for report in reports:
        setting = report.setting.resolved()
        responses = [
            (sample_states(request.sample, target), request)
            for request in spread(report.with_tokens(len(target.embedding)), RESPONSES)
        ]
        if responses and setting:
            found.append(find_wiring(report.source, draft, configured, responses, setting, ids, bases, progress))
    return found


def find_wiring(
    source: str, draft: Draft, configured: Wiring, responses: Sequence[Response], setting: Setting,
    ids: Sequence[int] | None = None, bases: Sequence[float] = (),
    progress: Progress = lambda share, what: None,
) -> ServedWiring:  # fmt: skip
    """``served_wiring`` for responses at hand.

    Raises:
        InputError: no response, or no states at a configured boundary.
    """
    if not responses:
        raise InputError(source, "no response", "at least one, with token ids and histogram")
    responses[0][0].stack(configured.boundaries)
    search = _ResponseSearch(draft, configured, responses, setting, bases, progress)
    fits = [search.fit(wiring) for wiring in search.search(max(search.available), ids)]
    progress(1.0, "done")
    return ServedWiring(source, configured, tuple(_ranked(fits, configured)), round(search.passes, 1))


def _ranked(fits: Iterable[Fit], configured: Wiring) -> list[Fit]:
    """Nearest first, but before them the one that changes least of all those that fit and are not surely worse."""

    def changes(fit: Fit) -> int:
        return len(configured.differences(fit.wiring))

    ranked = sorted(fits, key=lambda fit: (-(fit.informative.value or 0.0), changes(fit)))
    best, _, rest = least_changed(ranked, lambda first, fit: fit.fits and not first.beats(fit), changes)
    return [best, *rest]


class _ResponseSearch(CandidateSearch):
    """Scored by the share of informative verify steps predicted, of few responses and, where possible, few depths."""

    def __init__(
        self, draft: Draft, configured: Wiring, responses: Sequence[Response], setting: Setting,
        bases: Sequence[float], progress: Progress,
    ) -> None:  # fmt: skip
        available = sorted(set.intersection(*(set(states.states) for states, _ in responses)))
        super().__init__(draft, configured, available, bases, progress)
        self.setting, self.passes = setting, 0.0
        self.responses = sorted(responses, key=lambda response: -sum(response[1].histogram[1:]))  # most accepted first
        self.matches: dict[Wiring, list[Match]] = {}

    def score(self, wiring: Wiring, rough: bool) -> float:
        depths = 1 if rough else 2
        matches = [self._match(wiring, response, depths) for response in self.responses[: 1 if rough else SCREENED]]
        informative = sum(each.informative for each in matches)
        return sum(each.informative_equal for each in matches) / informative if informative else 0.0

    def worse(self, wiring: Wiring, than: Wiring, comparisons: int) -> bool:
        """Response by response, so that what is far off costs a few: a wiring is given up once it is surely worse."""
        for count in range(SURE**2, len(self.responses) + 1):
            if self.fit(than, count).beats(self.fit(wiring, count)):
                return True
        return False

    def settled(self, wirings: Iterable[Wiring]) -> Wiring | None:
        fits = _ranked([self.fit(wiring) for wiring in dict.fromkeys(wirings)], self.configured)
        return fits[0].wiring if fits[0].fits else None

    def fit(self, wiring: Wiring, count: int | None = None) -> Fit:
        """Held against the first ``count`` responses, all where left out."""
        known, wanted = self.matches.setdefault(wiring, []), self.responses[:count]
        known += [self._match(wiring, response) for response in wanted[len(known) :]]
        return Fit.of(wiring, self.configured, known[: len(wanted)])

    def _match(self, wiring: Wiring, response: Response, depths: int | None = None) -> Match:
        chain = self.setting[1] == 1 and response[1].steps is not None
        deep = min(depths or self.setting[0], self.setting[0]) if chain else self.setting[0]
        setting = Setting(deep, 1, deep + 1) if chain else self.setting
        self.passes += deep / self.setting[0] / len(self.responses)
        return match(self.draft, wiring, *response, setting)
