"""Which speculative settings pay, at which load, against no speculation?"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from eagle3lib.reading.points import FIELDS, Point, Status
from eagle3lib.reading.setting import OFF, Setting

#: With a single measurement each there is no interval: a speed-up must then exceed what runs differ by
#: anyway.
UNREPEATED_MARGIN = 1.05
#: A first repeat below this share of the others' median is warm-up; with fewer repeats than these it stays.
WARM_UP, REPEATS = 0.5, 3
#: The sweep's note on a point that the engine served under another setting than the one asked for.
_SERVED_AS = re.compile(r"served as (\d+)/(\d+)/(\d+)")


@dataclass(frozen=True)
class Summary:
    """All repeats of one setting at one load.

    Intervals are 95 %, Student's t over repeats; ``speedup`` is the ratio of means to no speculation at the
    same load, its interval from ratios of the repeats measured as pairs where both have them.
    """

    num_steps: int
    topk: int
    num_draft_tokens: int
    concurrency: int
    tokens_per_second: float | None
    tokens_per_second_ci: tuple[float, float] | None
    accept_length: float | None
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    repeats: int
    status: Status
    reason: str

    @property
    def setting(self) -> Setting:
        return self.num_steps, self.topk, self.num_draft_tokens

    @property
    def pays(self) -> bool:
        """A speed-up is shown: the whole interval lies above 1, or without one the margin is exceeded."""
        if self.setting == OFF or self.speedup is None:
            return False
        return self.speedup_ci[0] > 1 if self.speedup_ci else self.speedup > UNREPEATED_MARGIN

    @property
    def loses(self) -> bool:
        """A slow-down is shown, in the same way."""
        if self.setting == OFF or self.speedup is None:
            return False
        return self.speedup_ci[1] < 1 if self.speedup_ci else self.speedup < 1 / UNREPEATED_MARGIN


def summarise(points: Sequence[Point]) -> list[Summary]:
    """One summary per setting as served and load, in the order in which they first appear."""
    groups: dict[tuple[Setting, int], list[Point]] = defaultdict(list)
    for point in map(_as_served, points):
        groups[point.setting, point.concurrency].append(point)
    return [_summary(group, groups.get((OFF, concurrency), [])) for (_, concurrency), group in groups.items()]


def recommend(summaries: Sequence[Summary]) -> dict[str, dict[str, int] | Literal["off"] | None]:
    """By load, the fastest setting that is shown to be faster than no speculation; else ``"off"``.

    ``None`` where no setting was measured beside no speculation: nothing is known of such a load.
    """
    recommendation: dict[str, dict[str, int] | Literal["off"] | None] = {}
    for concurrency in sorted({summary.concurrency for summary in summaries}):
        compared = [s for s in summaries if s.concurrency == concurrency and s.setting != OFF and s.speedup is not None]
        paying = [summary for summary in compared if summary.pays]
        best = max(paying, key=lambda summary: summary.tokens_per_second or 0.0, default=None)
        said = None if best is None else dict(zip(FIELDS, best.setting, strict=True))
        recommendation[str(concurrency)] = said or ("off" if compared else None)
    return recommendation


def _as_served(point: Point) -> Point:
    """A measured point under the setting it was served as, with a note where that is not the one asked for.

    The sweep notes what the server made of the setting; other sources do not, but with topk 1 the engine always
    drafts a chain of num_steps + 1 tokens.
    """
    if point.status != "ok" or point.setting == OFF:
        return point
    steps, topk, tokens = point.setting
    if noted := _SERVED_AS.search(point.reason):
        steps, topk, tokens = map(int, noted.groups())
    elif topk == 1:
        tokens = steps + 1
    if (steps, topk, tokens) == point.setting or 0 in (steps, topk, tokens):
        return point
    note = f"asked for {'/'.join(map(str, point.setting))}, served as {steps}/{topk}/{tokens}"
    return replace(point, num_steps=steps, topk=topk, num_draft_tokens=tokens, reason=note)


def _by_repeat(points: Sequence[Point]) -> tuple[dict[int, float], str]:
    """Speeds by repeat without a warm-up, and a note on it.

    Where two settings were served as the same one, the second's repeats count on.
    """
    speeds: dict[int, float] = {}
    for point in points:
        if point.tokens_per_second:
            repeat = point.repeat if point.repeat not in speeds else max(speeds) + 1
            speeds[repeat] = point.tokens_per_second
    first = min(speeds, default=0)
    others = [speed for repeat, speed in speeds.items() if repeat != first]
    if not others or speeds[first] >= WARM_UP * np.median(others):
        return speeds, ""
    slow = f"the first repeat, {speeds[first]:.4g} tokens/s beside {np.median(others):.4g}, "
    if len(speeds) < REPEATS:
        return speeds, f"{slow}looks like a warm-up and is kept: there are fewer than {REPEATS} repeats"
    del speeds[first]
    return speeds, f"{slow}is left out as a warm-up"


def _summary(group: Sequence[Point], baseline: Sequence[Point]) -> Summary:
    (measured, warm_up), (off, _) = _by_repeat(group), _by_repeat(baseline)
    lengths = [point.accept_length for point in group if point.accept_length is not None]
    bad = next((point for point in group if point.status != "ok"), group[0])
    notes = dict.fromkeys(note for note in (*(point.reason for point in group), warm_up) if note)  # and failures
    speeds = list(measured.values())
    speedup = float(np.mean(speeds) / np.mean(list(off.values()))) if speeds and off else None
    return Summary(
        *group[0].setting,
        concurrency=group[0].concurrency,
        tokens_per_second=float(np.mean(speeds)) if speeds else None,
        tokens_per_second_ci=_interval(speeds),
        accept_length=float(np.mean(lengths)) if lengths else None,
        speedup=speedup,
        speedup_ci=None if group[0].setting == OFF else _ratio_interval(measured, off),
        repeats=len(speeds),
        status="ok" if speeds else bad.status,
        reason="; ".join(notes),
    )


def _interval(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def _ratio_interval(measured: dict[int, float], off: dict[int, float]) -> tuple[float, float] | None:
    """The interval of the ratio, on logarithms: paired where the repeats are the same, else Welch's."""
    if len(measured) < 2 or len(off) < 2:
        return None
    if measured.keys() == off.keys():
        interval = _interval([math.log(measured[repeat] / off[repeat]) for repeat in measured])
        assert interval is not None
        low, high = interval
    else:
        result = stats.ttest_ind(np.log(list(measured.values())), np.log(list(off.values())), equal_var=False)
        low, high = result.confidence_interval(0.95)
    return math.exp(low), math.exp(high)
