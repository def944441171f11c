"""The wiring under which a draft's weights predict best, and what that says about wiring and model.

Cheap passes first (``wiring_screen``). What they leave is measured in full, by the accept length of the walk
of verify steps, with gains paired by request.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.evaluation import Evaluation, evaluate
from eagle3lib.measuring.prediction import accept_counts
from eagle3lib.measuring.rates import Rate, gain
from eagle3lib.measuring.wiring_candidates import boundary_families, describe, switches
from eagle3lib.measuring.wiring_screen import PARTS, Material, Progress, Screen

__all__ = ["Candidate", "Material", "Search", "search_wiring"]

Answer = Literal["sound", "wiring", "model", "both", "undecided"]

#: A first position below this on the draft's own kind of text is undertrained.
GOOD_FIRST = 0.4
#: An interval about it wider than this says nothing.
WIDE = 0.15
#: The smallest gain in accept length worth a change, as a share: below it, other wirings look alike.
MATERIAL = 0.03


@dataclass(frozen=True)
class Candidate:
    """A wiring measured on all samples. ``gain`` is in accept length over the configured wiring."""

    change: str
    wiring: Wiring
    conditional_depth1: Rate
    accept_length: Rate
    gain: float
    gain_ci: tuple[float, float] | None

    def to_json(self) -> dict[str, object]:
        return {
            "change": self.change, "conditional_depth1": self.conditional_depth1.to_json(),
            "accept_length": self.accept_length.to_json(), "gain": self.gain,
            "gain_ci": None if self.gain_ci is None else list(self.gain_ci),
        }  # fmt: skip


@dataclass(frozen=True)
class Search:
    """Candidates, best first, the configured wiring among them.

    ``idle_slots``: slots of the best wiring whose stream the draft is better without: it is none that the
    slot was trained on. ``passes``: wirings tried, cheap passes too.
    """

    candidates: tuple[Candidate, ...]
    configured: Wiring
    idle_slots: tuple[int, ...]
    passes: int

    @property
    def as_configured(self) -> Candidate:
        return next(c for c in self.candidates if c.wiring == self.configured)

    @property
    def better(self) -> Candidate | None:
        """The best wiring, where it is better beyond its interval and by enough to matter."""
        best, here = self.candidates[0], self.as_configured
        sure = best.gain_ci is not None and best.gain_ci[0] > 0
        return best if sure and best.gain >= MATERIAL * (here.accept_length.value or 1) else None

    @property
    def trained_boundaries(self) -> tuple[int, ...] | None:
        """The boundaries these weights were trained on, where the search is sure of them."""
        if self.better:
            return self.better.wiring.boundaries
        return self.configured.boundaries if self.answer == "sound" else None

    @property
    def answer(self) -> Answer:
        """Is the wiring at fault, or the model? ``undecided`` where the samples are too few to say."""
        best = self.better or self.as_configured
        first = best.conditional_depth1
        if first.ci is None or first.value is None:
            return "undecided"
        if first.ci[0] < GOOD_FIRST <= first.ci[1] and first.ci[1] - first.ci[0] > WIDE:
            return "undecided"
        good = first.value >= GOOD_FIRST
        if self.better:
            return "wiring" if good else "both"
        return "sound" if good else "model"


def search_wiring(
    draft: Draft,
    configured: Wiring,
    materials: Sequence[Material],
    num_steps: int = 3,
    layers: int | None = None,
    ids: Sequence[int] | None = None,
    bases: Sequence[float] = (),
    keep: int = 3,
    progress: Progress = lambda share, words: None,
) -> Search:
    """Try other wirings on the same samples and rank the best by predicted accept length.

    Args:
        layers: blocks of the target; ``ids``: the capture ids as the config spells them; ``bases``: further
            RoPE bases, such as the target's. All optional; each adds candidates.
        keep: how many wirings are measured in full, beside the configured one and what explains itself.
        progress: told the share done and what is tried next.

    Raises:
        InputError: no sample, or a configured boundary whose states are not at hand.
    """
    if not materials:
        raise InputError("samples", "none", "at least one sample")
    available = sorted(set.intersection(*(set(m.states) for m in materials)))
    missing = [k for k in configured.boundaries if k not in available]
    if missing:
        raise InputError("boundaries", f"no states at {missing}", f"states at {list(configured.boundaries)}")
    screen = Screen(draft, [m.part() for m in materials[:PARTS]], progress)
    families = [configured, *boundary_families(configured, available, layers, ids)]
    screen.try_all(families, 0.0, "other numberings, orders and shifts")
    told = screen.best(2)  # wirings that a known mistake explains are measured, whatever else scores higher
    explained = set(families)
    tops: list[Wiring] = []
    for start in [w for w in screen.best(len(families)) if w.shift == configured.shift][:3]:
        if all(_slots_apart(start, top) > 1 for top in tops):  # else that climb has passed it by
            tops.append(screen.ascend(start, available, 0.2 + 0.1 * len(tops)))
    for base in dict.fromkeys([told[0], *tops[:1], configured]):
        variants = list(switches(base, draft, bases))
        explained.update(variants if base in explained else [])
        screen.try_all(variants, 0.6, "each switch alone")
    chosen = _finalists([configured, *told, *screen.best(len(screen.scores))], len({configured, *told}) + keep)
    candidates = _measured(draft, configured, chosen, explained, materials, num_steps, progress)
    progress(1.0, "done")
    return Search(tuple(candidates), configured, screen.idle_slots(candidates[0].wiring), screen.passes)


def _slots_apart(a: Wiring, b: Wiring) -> int:
    return sum(x != y for x, y in zip(a.boundaries, b.boundaries, strict=True))


def _finalists(ranked: Sequence[Wiring], count: int) -> list[Wiring]:
    """The first ``count``; of wirings that differ in the RoPE base alone, which look alike, the first."""
    chosen: list[Wiring] = []
    for wiring in ranked:
        if len(chosen) < count and all(set(wiring.differences(other)) - {"rope_theta"} for other in chosen):
            chosen.append(wiring)
    return chosen


def _measured(
    draft: Draft, configured: Wiring, chosen: Sequence[Wiring], explained: Container[Wiring],
    materials: Sequence[Material], num_steps: int, progress: Progress,
) -> list[Candidate]:  # fmt: skip
    """All samples and depths, best first; a wiring that no known mistake explains must be clearly better."""
    measured = []
    for i, wiring in enumerate(chosen):
        progress(0.7 + 0.3 * i / len(chosen), f"in full: {describe(wiring, configured)}")
        requests = [evaluate(draft, wiring, m.sample, m.stack(wiring.boundaries), num_steps) for m in materials]
        measured.append((wiring, Evaluation(tuple(requests))))
    base = accept_counts(measured[0][1].walks(num_steps))
    candidates = []
    for wiring, evaluation in measured:
        better = gain(*accept_counts(evaluation.walks(num_steps)), *base)
        candidates.append(
            Candidate(
                describe(wiring, configured), wiring, evaluation.depths()[0].conditional,
                evaluation.accept_length(num_steps), better.value or 0.0, better.ci,
            )
        )  # fmt: skip
    strangeness = MATERIAL * (candidates[0].accept_length.value or 0)

    def rank(candidate: Candidate) -> tuple[float, int]:
        value = candidate.accept_length.value or 0.0
        handicap = 0.0 if candidate.wiring in explained else strangeness
        return handicap - value, len(configured.differences(candidate.wiring))

    return sorted(candidates, key=rank)
