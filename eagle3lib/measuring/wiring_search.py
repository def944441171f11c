"""The wiring under which a draft's weights predict best, and what that says about wiring and model.

Cheap passes first (``wiring_screen``). What they leave is measured in full, by the accept length of the walk
of verify steps, with gains paired by request.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.evaluation import Evaluation, Request, evaluate
from eagle3lib.measuring.prediction import accept_counts
from eagle3lib.measuring.rates import Rate, paired_difference
from eagle3lib.measuring.sample_states import Progress, SampleStates, spread
from eagle3lib.measuring.significance import LEVEL, is_significant
from eagle3lib.measuring.wiring_candidates import boundary_families, describe, norms, switches
from eagle3lib.measuring.wiring_screen import CONTEXT, PARTS, STARTS, Screen

Answer = Literal["sound", "wiring", "model", "both", "undecided"]

#: A first position below this on the draft's own kind of text is undertrained.
GOOD_FIRST = 0.4
#: An interval about it wider than this says nothing.
WIDE = 0.15
#: The smallest gain in accept length worth a change, as a share: below it, other wirings look alike.
MATERIAL = 0.03
#: Wirings that are measured in full, beside the configured one and what explains itself.
FULL = 3
#: Requests below which none is called better: two may agree by chance.
LEAST_REQUESTS = 3
#: A gain so large, as a share, that no wiring which is as good comes near it: its plain interval is enough.
LARGE = 0.3


@dataclass(frozen=True)
class Candidate:
    """A wiring measured on all samples. ``gain`` is in accept length over the configured wiring.

    ``shown``: the gain is significant among all that were measured in full (``is_significant``). ``near``: of the
    best, the other changes that these samples do not tell from it.
    """

    change: str
    wiring: Wiring
    conditional_depth1: Rate
    accept_length: Rate
    gain: float
    gain_ci: tuple[float, float] | None
    shown: bool = False
    near: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "change": self.change, "boundaries": list(self.wiring.boundaries),
            "conditional_depth1": self.conditional_depth1, "accept_length": self.accept_length,
            "gain": self.gain, "gain_ci": self.gain_ci,
        }  # fmt: skip


@dataclass(frozen=True)
class Search:
    """Candidates, best first, the configured wiring among them.

    ``idle_slots``: slots of the best wiring whose stream the draft is better without: it is none that the
    slot was trained on. ``passes``: wirings tried, most of them on a few rows. ``cost``: all of it, in units of the
    time that one wiring takes over all samples.
    """

    candidates: tuple[Candidate, ...]
    configured: Wiring
    idle_slots: tuple[int, ...]
    passes: int
    cost: float

    @property
    def as_configured(self) -> Candidate:
        return next(c for c in self.candidates if c.wiring == self.configured)

    @property
    def better(self) -> Candidate | None:
        """The best wiring, where it is shown to be better, and by enough to matter."""
        best = self.candidates[0]
        return best if best.shown and self._matters(best) else None

    def _matters(self, best: Candidate, share: float = MATERIAL) -> bool:
        return best.gain >= share * (self.as_configured.accept_length.value or 1)

    @property
    def trained_boundaries(self) -> tuple[int, ...] | None:
        """The boundaries these weights were trained on, where the search is sure of them."""
        if self.better:
            return self.better.wiring.boundaries
        return self.configured.boundaries if self.answer == "sound" else None

    @property
    def answer(self) -> Answer:
        """Is the wiring at fault, or the model? ``undecided`` where the samples are too few to say.

        So too where a wiring looks better, beyond a plain 95 % interval, and is not shown to be.
        """
        first = (self.better or self.as_configured).conditional_depth1
        if first.ci is None or first.value is None:
            return "undecided"
        if self.better:
            return "both" if first.ci[1] < GOOD_FIRST else "wiring"
        top = self.candidates[0]
        looks_better = top.gain_ci is not None and top.gain_ci[0] > 0 and self._matters(top)
        if looks_better or (first.ci[0] < GOOD_FIRST <= first.ci[1] and first.ci[1] - first.ci[0] > WIDE):
            return "undecided"
        if first.value >= GOOD_FIRST:
            return "sound"
        return "undecided" if self._matters(top, LARGE) else "model"  # the better-looking one is not refuted


def search_wiring(
    draft: Draft,
    configured: Wiring,
    dataset: Iterable[SampleStates],
    num_steps: int = 3,
    layers: int | None = None,
    ids: Sequence[int] | None = None,
    bases: Sequence[float] = (),
    progress: Progress = lambda share, words: None,
) -> Search:
    """Try other wirings on the same samples and rank the best by predicted accept length.

    Args:
        dataset: gone through twice, one at a time: for the few rows of the cheap passes, and for all rows under
            the wirings that these leave.
        layers: blocks of the target; ``ids``: the capture ids as the config spells them; ``bases``: further
            RoPE bases, such as the target's. All optional; each adds candidates.
        progress: told the share done and what is tried next.

    Raises:
        InputError: no sample, or a configured boundary whose states are not at hand.
    """
    begun = perf_counter()
    parts, available = _parts(dataset, configured)
    screen = Screen(draft, parts, progress)
    families = [configured, *boundary_families(configured, available, layers, ids)]
    explained = set(families) | {both for family in families for both in norms(family, draft)}
    screen.try_all(
        [*families, *explained.difference(families)], 0.0, "other numberings, orders and shifts, norms with each"
    )
    told = screen.best(2)  # wirings that a known mistake explains are measured, whatever else scores higher
    tops = [screen.ascend(start, available, 0.2 + 0.05 * i) for i, start in enumerate(_starts(screen, configured))]
    tops.sort(key=lambda top: -screen.scores[top])
    for base in dict.fromkeys([told[0], *tops[:1], configured]):
        variants = list(switches(base, draft, bases))
        explained.update(variants if base in explained else [])
        screen.try_all(variants, 0.6, "each switch alone")
    chosen = _finalists([configured, *told, *screen.best(len(screen.scores))], len({configured, *told}) + FULL)
    seconds, evaluations = _measured(draft, chosen, dataset, num_steps, progress)
    candidates = _ranked(configured, chosen, evaluations, explained, num_steps)
    idle = screen.idle_slots(candidates[0].wiring)
    progress(1.0, "done")
    cost = (perf_counter() - begun) / (seconds / len(chosen))
    return Search(tuple(candidates), configured, idle, screen.passes + len(chosen), cost)


def _parts(dataset: Iterable[SampleStates], configured: Wiring) -> tuple[list[SampleStates], list[int]]:
    """A few rows of a few samples, evenly spread over all, and the boundaries at hand in every sample."""
    sets: list[set[int]] = []

    def cut(sample_states: SampleStates) -> SampleStates:
        sets.append(set(sample_states.states))
        return sample_states.part(CONTEXT, STARTS + 2)

    parts = spread(map(cut, dataset), PARTS)
    if not sets:
        raise InputError("samples", "none", "at least one sample")
    available = sorted(set.intersection(*sets))
    if missing := [k for k in configured.boundaries if k not in available]:
        raise InputError("boundaries", f"no states at {missing}", f"states at {list(configured.boundaries)}")
    return parts, available


def _starts(screen: Screen, configured: Wiring, count: int = 3) -> list[Wiring]:
    """Where to climb from: the best few, and the best under each norm, for norms hide what boundaries are worth.

    One that lies a slot away from another is left out, for that climb passes it by.
    """
    starts: list[Wiring] = []
    ranked = [wiring for wiring in screen.best(len(screen.scores)) if wiring.shift == configured.shift]
    for place, wiring in enumerate(ranked):
        alike = [other for other in starts if not set(wiring.differences(other)) - {"boundaries"}]
        near = any(sum(x != y for x, y in zip(wiring.boundaries, o.boundaries, strict=True)) < 2 for o in alike)
        if not alike or (place < count and not near):
            starts.append(wiring)
    return starts


def _finalists(ranked: Sequence[Wiring], count: int) -> list[Wiring]:
    """The first ``count``; of wirings that differ in the RoPE base alone, which look alike, the first."""
    chosen: list[Wiring] = []
    for wiring in ranked:
        if len(chosen) < count and all(set(wiring.differences(other)) - {"rope_theta"} for other in chosen):
            chosen.append(wiring)
    return chosen


def _measured(
    draft: Draft, chosen: Sequence[Wiring], dataset: Iterable[SampleStates], num_steps: int, progress: Progress
) -> tuple[float, list[Evaluation]]:
    """Seconds of computing, and every wiring over all samples and depths; a sample is read once for all of them."""
    requests: list[list[Request]] = [[] for _ in chosen]
    seconds = 0.0
    for count, sample_states in enumerate(dataset, 1):
        if count.bit_count() == 1:  # 1, 2, 4, 8 ...
            progress(0.7, f"in full: {len(chosen)} wirings, sample {count}")
        begun = perf_counter()
        for wiring, own in zip(chosen, requests, strict=True):
            own.append(evaluate(draft, wiring, sample_states.sample, sample_states.stack(wiring.boundaries), num_steps))
        seconds += perf_counter() - begun
    return seconds, [Evaluation(tuple(own)) for own in requests]


def _ranked(
    configured: Wiring, chosen: Sequence[Wiring], evaluations: Sequence[Evaluation], explained: Container[Wiring],
    num_steps: int,
) -> list[Candidate]:  # fmt: skip
    """Best first. ``chosen[0]`` is ``configured``.

    A wiring must be clearly better where no known mistake explains it, and where another one changes less of the same.
    """
    counts = {
        wiring: accept_counts(evaluation.steps(num_steps))
        for wiring, evaluation in zip(chosen, evaluations, strict=True)
    }
    base = counts[configured]
    usual, others, requests = sum(base[0]) / max(sum(base[1]), 1), max(len(chosen) - 1, 1), len(base[0])
    candidates = []
    for wiring, evaluation in zip(chosen, evaluations, strict=True):
        better = paired_difference(*counts[wiring], *base)
        plain = better.ci is not None and better.ci[0] > 0
        large = plain and (better.value or 0.0) >= LARGE * usual and requests > LEAST_REQUESTS
        shown = large or (
            requests >= LEAST_REQUESTS and is_significant(better, requests, others, 2 * LEVEL)
        )  # one side
        candidates.append(
            Candidate(
                describe(wiring, configured), wiring, evaluation.depths()[0].conditional,
                evaluation.accept_length(num_steps), better.value or 0.0, better.ci,
                shown,
            )
        )  # fmt: skip

    def rank(candidate: Candidate) -> tuple[float, int]:
        changes = configured.differences(candidate.wiring)
        simpler = any(
            candidate.gain - MATERIAL * usual < other.gain
            and len(less := configured.differences(other.wiring)) < len(changes)
            and all(changes.get(switch) == values for switch, values in less.items())
            for other in candidates
            if other.wiring != configured
        )
        handicap = MATERIAL * usual if simpler or candidate.wiring not in explained else 0.0
        return handicap - candidate.gain, len(changes)

    def near(first: Candidate, other: Candidate) -> bool:
        """Whether the first is not surely ahead of the other one, which is better than configured."""
        ahead = paired_difference(*counts[first.wiring], *counts[other.wiring]).ci
        return other.shown and (ahead is None or ahead[0] <= 0)

    def strange(candidate: Candidate) -> int:
        """Boundaries that nobody configured, the embedding aside."""
        return sum(k not in (0, *configured.boundaries) for k in candidate.wiring.boundaries)

    first, *rest = sorted(candidates, key=rank)
    if not first.shown:
        return [first, *rest]
    # Neighbouring layers look alike to few samples: of those too near to tell, the one that the least mistake explains.
    ties = [first, *(each for each in rest if near(first, each))]
    best = min(
        [each for each in ties if each.wiring in explained] or ties, key=lambda each: (strange(each), rank(each))
    )
    named = replace(best, near=tuple(each.change for each in ties if each is not best))
    return [named, *(each for each in (first, *rest) if each is not best)]
