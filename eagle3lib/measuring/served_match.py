"""One wiring held against one served response: on which verify steps does it foretell what was accepted?

Most steps of a poor draft accept nothing, and any wrong wiring foretells that. So wirings are told apart by the
*telling* steps alone, those that accept a draft in fact or in the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lib.maths.draft import Draft
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.forecast import Forecast, Setting, setting_forecast
from eagle3lib.measuring.materials import Material


@dataclass(frozen=True)
class Response:
    """A finished request: ``steps``, drafts accepted in each verify step where their order is known, and histogram."""

    material: Material
    steps: tuple[int, ...] | None
    histogram: tuple[int, ...]

    @property
    def accepting(self) -> int:
        """Verify steps that accepted a draft."""
        return sum(self.histogram[1:])


@dataclass(frozen=True)
class Match:
    """Verify steps compared; ``told`` of ``telling`` ones, which are among them, as they were foretold.

    ``foretold``: the prediction itself, a count a step where ``ordered``, else a histogram, which shows next to
    nothing until it is right to the last step: wirings of one accept rate have much the same.
    """

    equal: int
    steps: int
    told: int
    telling: int
    foretold: tuple[int | None, ...]
    ordered: bool

    @property
    def missed(self) -> int:
        return self.steps - self.equal


def match(draft: Draft, wiring: Wiring, response: Response, setting: Setting) -> Match:
    """``setting`` as served; a chain in order may be held against fewer steps, deeper drafts are then not looked at."""
    forecast = setting_forecast(draft, wiring, response.material, setting)
    return _in_order(forecast, response.steps, setting[0]) if response.steps else _counted(forecast, response, setting)


def _in_order(forecast: Forecast, steps: tuple[int, ...], most: int) -> Match:
    """Each step at its own start; steps that nothing is foretold of, past the known tokens, are left out."""
    starts = [0]
    for accepted in steps[:-1]:
        starts.append(starts[-1] + accepted + 1)
    foretold = tuple(forecast.runs[at] if at < len(forecast.runs) else None for at in starts)
    pairs = [(p, min(s, most)) for p, s in zip(foretold, steps, strict=True) if p is not None]
    telling = [(p, s) for p, s in pairs if p or s]
    return Match(
        sum(p == s for p, s in pairs), len(pairs), sum(p == s for p, s in telling), len(telling), foretold, True
    )


def _counted(forecast: Forecast, response: Response, setting: Setting) -> Match:
    """Histograms: what both have is equal, at best. A last step that cannot be foretold is taken as it was served."""
    served = [*response.histogram, *[0] * (setting[0] + 1 - len(response.histogram))]
    counts = list(forecast.walk.histogram(len(served) - 1))
    if not forecast.walk.complete:
        open_ones = [j for j, (mine, theirs) in enumerate(zip(counts, served, strict=True)) if mine < theirs]
        for accepted in open_ones[-1:]:
            counts[accepted] += 1
    both = [min(pair) for pair in zip(counts, served, strict=True)]
    either = [max(pair) for pair in zip(counts, served, strict=True)]
    return Match(sum(both), max(sum(served), sum(counts)), sum(both[1:]), sum(either[1:]), tuple(counts), False)
