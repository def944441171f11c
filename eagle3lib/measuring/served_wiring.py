"""The wiring that an engine really used, read from ordinary responses: no hook, no restart.

The prediction of greedy serving is exact, so it can be turned round: the wiring whose prediction is what was
served is the one that was served. Cheap passes over the most telling responses first, then all of them in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.sample_states import Progress, SampleStates, sample_states, spread
from eagle3lib.measuring.served_match import Fit, match
from eagle3lib.measuring.wiring_candidates import boundary_families, slot_changes, switches
from eagle3lib.reading.engine_reports import EngineReport, RequestReport
from eagle3lib.reading.setting import Setting

Answer = Literal["as configured", "another wiring", "undecided", "none"]

#: Responses used, spread evenly; and the most telling ones, used in cheap passes.
RESPONSES, SCREENED = 16, 3
#: A finished request: its tokens with the target's states, and what the engine says it accepted.
Response = tuple[SampleStates, RequestReport]


@dataclass(frozen=True)
class ServedWiring:
    """What one source's responses say of the wiring. ``fits``: those measured in full, best first (``_ranked``).

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
        """Wirings that these responses cannot tell from the best, as all of them are predicted alike."""
        return tuple(fit for fit in self.fits[1:] if not fit.differs(self.best))

    @property
    def possible(self) -> tuple[Fit, ...]:
        """The best and every wiring that it does not surely beat."""
        return tuple(fit for fit in self.fits if not self.best.beats(fit))

    @property
    def answer(self) -> Answer:
        if not self.best.fits:
            return "none" if self.best.tells else "undecided"
        if self.best.wiring == self.configured:
            return "as configured"
        return "undecided" if self.as_configured in self.possible else "another wiring"

    def words(self) -> str:
        """The answer in one sentence or two."""
        best, rival = self.best, self.runner_up
        exact, steps = (f"{each.numerator} of {each.denominator}" for each in (best.exact, best.steps))
        share = f"{exact} responses exactly, {steps} verify steps"
        if not best.tells:
            return f"Too few drafts were accepted to tell: {best.telling.denominator} verify steps with one."
        if self.answer == "none":
            return f"No wiring tried predicts what was served; the nearest, {best.change}, has {share}."
        text = f"What was served is what this wiring predicts: {best.change} ({share})."
        if rival:
            needed = best.needed(rival)
            text += (
                f" Runner-up: {rival.change} ({rival.exact.numerator} responses, {rival.steps.numerator} steps), "
                f"{'surely' if best.beats(rival) else 'not surely'} told apart; they differ on {best.differs(rival)} "
                f"of {len(best.matches)} responses, and {needed or 'no number'} like these would tell them apart."
            )
        if self.ties:
            text += f" Not to be told from it here: {' / '.join(fit.change for fit in self.ties)}."
        return text

    def to_json(self) -> dict[str, Any]:
        fits = [{**fit.to_json(), "needed": self.best.needed(fit)} for fit in self.fits]
        said = {"source": self.source, "answer": self.answer, "words": self.words()}
        return {**said, "passes": self.passes, "fits": fits}


def served_wiring(
    reports: Sequence[EngineReport], draft: Draft, configured: Wiring, target: Target, *,
    ids: Sequence[int] | None = None, bases: Sequence[float] = (), progress: Progress = lambda share, words: None,
) -> list[ServedWiring]:  # fmt: skip
    """An answer for every report whose requests carry their token ids and a histogram; see ``predict_reports``.

    Args:
        ids: the capture ids as the config spells them; ``bases``: further RoPE bases. Each adds wirings to try.
        progress: told the share done and what is tried next.
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
    progress: Progress = lambda share, words: None,
) -> ServedWiring:  # fmt: skip
    """``served_wiring`` for responses at hand.

    Raises:
        InputError: no response, or no states at a configured boundary.
    """
    if not responses:
        raise InputError(source, "no response", "at least one, with token ids and histogram")
    responses[0][0].stack(configured.boundaries)
    trial = _Trial(draft, configured, responses, setting)
    progress(0.0, "other numberings, orders and shifts")
    families = [configured, *boundary_families(configured, trial.available, max(trial.available), ids)]
    starts = trial.best(families, 1, 3)
    fits = [trial.fit(wiring) for wiring in dict.fromkeys([*starts, configured])]
    if not any(fit.fits for fit in fits):
        progress(0.2, "each switch alone")
        fits += [trial.fit(wiring) for wiring in trial.best(switches(configured, draft, bases), 2, 1)]
    for start in dict.fromkeys([*starts[:2], configured]):
        if any(fit.fits for fit in fits):
            break
        progress(0.3, f"other layers for each slot of {list(start.boundaries)}")
        fits.append(trial.fit(trial.climb(start, bases)))
    for share in (0.6, 0.8):  # the nearest neighbours name the runner-up, and may be better still
        top = _ranked(fits, configured)[0].wiring
        progress(share, f"neighbours of {list(top.boundaries)}")
        fits += [trial.fit(wiring) for wiring in trial.best(trial.neighbours(top, bases), 2, 4)]
        if _ranked(fits, configured)[0].wiring == top:
            break
    progress(1.0, "done")
    return ServedWiring(source, configured, tuple(_ranked(fits, configured)), round(trial.passes, 1))


def _ranked(fits: Iterable[Fit], configured: Wiring) -> list[Fit]:
    """Nearest first, without repeats, but before them the one that changes least of all those not surely worse.

    Of many neighbours one is often a step nearer by luck.
    """

    def changes(fit: Fit) -> int:
        return len(configured.differences(fit.wiring))

    once = {fit.wiring: fit for fit in fits}.values()
    ranked = sorted(once, key=lambda fit: (-(fit.telling.value or 0.0), changes(fit)))
    rivals = [fit for fit in ranked if fit.fits and not ranked[0].beats(fit)]
    best = min(rivals or ranked[:1], key=changes)
    return [best, *(fit for fit in ranked if fit is not best)]


class _Trial:
    """Wirings held against responses, cheaply or in full; nothing is computed twice."""

    def __init__(self, draft: Draft, configured: Wiring, responses: Sequence[Response], setting: Setting) -> None:
        self.draft, self.configured, self.responses, self.setting = draft, configured, responses, setting
        self.telling = sorted(responses, key=lambda response: -sum(response[1].histogram[1:]))[:SCREENED]
        self.available = sorted(set.intersection(*(set(states.states) for states, _ in responses)))
        self.passes = 0.0
        self.scores: dict[tuple[Wiring, int], float] = {}
        self.measured: dict[Wiring, Fit] = {}

    def fit(self, wiring: Wiring) -> Fit:
        if wiring not in self.measured:
            self.passes += 1
            matches = [match(self.draft, wiring, *response, self.setting) for response in self.responses]
            self.measured[wiring] = Fit.of(wiring, self.configured, matches)
        return self.measured[wiring]

    def best(self, wirings: Iterable[Wiring], depths: int, count: int) -> list[Wiring]:
        return sorted(wirings, key=lambda wiring: -self.score(wiring, depths))[:count]

    def score(self, wiring: Wiring, depths: int) -> float:
        """The share of telling steps predicted, by few responses and, where that is possible, few depths."""
        if (wiring, depths) not in self.scores:
            matches = []
            for response in self.telling:
                chain = self.setting[1] == 1 and response[1].steps is not None and depths < self.setting[0]
                setting = Setting(depths, 1, depths + 1) if chain else self.setting
                matches.append(match(self.draft, wiring, *response, setting))
                self.passes += setting[0] / self.setting[0] / len(self.responses)
            telling = sum(each.telling for each in matches)
            self.scores[wiring, depths] = sum(each.told for each in matches) / telling if telling else 0.0
        return self.scores[wiring, depths]

    def climb(self, wiring: Wiring, bases: Sequence[float]) -> Wiring:
        """Change one switch or one slot at a time while it helps."""
        for _ in range(3):
            before = wiring
            wiring = self.best([wiring, *switches(wiring, self.draft, bases)], 2, 1)[0]
            for slot in range(self.draft.num_aux_hidden_states):
                wiring = self.best([wiring, *slot_changes(wiring, slot, self.available)], 1, 1)[0]
            if wiring == before:
                break
        return wiring

    def neighbours(self, wiring: Wiring, bases: Sequence[float]) -> list[Wiring]:
        """Each switch alone, and each slot one boundary off."""
        found = list(switches(wiring, self.draft, bases))
        for slot, here in enumerate(wiring.boundaries):
            found += slot_changes(wiring, slot, [k for k in (here - 1, here + 1) if k in self.available])
        return found
