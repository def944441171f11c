"""Rates as counts: added over requests, divided once, with intervals that resample requests.

Draft tokens of one request succeed or fail together, so an interval over tokens is far too narrow. Requests
are drawn anew, each with all its counts (Efron 1979; percentiles of the ratio of sums).

A notebook looks at many differences at once: a 95 % interval apart would be a false alarm once in twenty. A finding
needs the interval at 99.9 %, shared among the comparisons made at once (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

RESAMPLES = 2000
#: Chance of a false alarm in one question put to healthy data.
LEVEL = 0.001


@dataclass(frozen=True)
class Rate:
    """``numerator / denominator`` over all requests; ``ci``: 95 % interval, ``None`` for one request.

    Without counts it is a value that a source states and does not account for.
    """

    value: float | None
    numerator: float | None
    denominator: float | None
    ci: tuple[float, float] | None


@dataclass(frozen=True)
class Difference:
    """The difference of two rates, with its 95 % interval."""

    value: float | None
    ci: tuple[float, float] | None


def rate(numerators: Sequence[float], denominators: Sequence[float], seed: int = 0) -> Rate:
    """The pooled rate of requests ``i``, each with ``numerators[i]`` of ``denominators[i]``.

    ``value`` is ``None`` where nothing was counted at all: not measured is not zero.
    """
    top, bottom = _counts(numerators, denominators)
    total = float(bottom.sum())
    value = float(top.sum()) / total if total else None
    ci = _interval(_resampled(top, bottom, seed), value, len(top))
    if ci is not None:  # a share cannot leave 0 to 1, whatever the stretch
        ci = (max(ci[0], 0.0), min(ci[1], 1.0) if (top <= bottom).all() else ci[1])
    return Rate(value, _plain(top.sum()), _plain(total), ci)


def paired_difference(
    numerators: Sequence[float], denominators: Sequence[float],
    base_numerators: Sequence[float], base_denominators: Sequence[float], seed: int = 0,
) -> Difference:  # fmt: skip
    """How much higher the first rate is than the base; both resample the same requests."""
    top, bottom = _counts(numerators, denominators)
    base_top, base_bottom = _counts(base_numerators, base_denominators)
    if len(top) != len(base_top):
        raise ValueError(f"{len(top)} requests beside {len(base_top)}: a paired difference needs the same ones")
    if not bottom.sum() or not base_bottom.sum():
        return Difference(None, None)
    value = float(top.sum() / bottom.sum() - base_top.sum() / base_bottom.sum())
    first, base = _resampled(top, bottom, seed), _resampled(base_top, base_bottom, seed)
    drawn = None if first is None or base is None else first - base
    return Difference(value, _interval(drawn, value, len(top)))


def unpaired_difference(one: Rate, other: Rate) -> Difference:
    """How much higher the first rate is, the two measured on different requests: half widths add in squares."""
    if one.value is None or other.value is None:
        return Difference(None, None)
    value = one.value - other.value
    if one.ci is None or other.ci is None:
        return Difference(value, None)
    half = math.hypot((one.ci[1] - one.ci[0]) / 2, (other.ci[1] - other.ci[0]) / 2)
    return Difference(value, (value - half, value + half))


def _counts(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    top, bottom = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if top.shape != bottom.shape or top.ndim != 1:
        raise ValueError(f"{top.shape} numerators for {bottom.shape} denominators")
    if (bottom < 0).any() or (top[bottom == 0] != 0).any():
        raise ValueError("counts of nothing: a numerator without a denominator, or a negative one")
    return top, bottom


def _resampled(top: np.ndarray, bottom: np.ndarray, seed: int) -> np.ndarray | None:
    """Ratios of sums of requests drawn with replacement; the same seed draws the same requests."""
    if len(top) < 2 or not bottom.sum():
        return None
    share = np.full(len(top), 1 / len(top))
    draws = np.random.default_rng(seed).multinomial(len(top), share, size=RESAMPLES)
    below = draws @ bottom
    return np.divide(draws @ top, below, out=np.full(RESAMPLES, np.nan), where=below > 0)


def _interval(drawn: np.ndarray | None, value: float | None, requests: int) -> tuple[float, float] | None:
    """Percentiles, stretched about the value: n requests drawn anew vary less than n new requests would.

    The factor is Student's t over the normal quantile times ``sqrt(n / (n - 1))`` (Hesterberg 2015, 3.3).
    """
    if drawn is None or value is None or np.isnan(drawn).all():
        return None
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    stretch = stats.t.ppf(0.975, requests - 1) / stats.norm.ppf(0.975) * np.sqrt(requests / (requests - 1))
    return float(value + (low - value) * stretch), float(value + (high - value) * stretch)


def _plain(count: float) -> float | int:
    return int(count) if float(count).is_integer() else float(count)


def is_significant(found: Difference, requests: int, comparisons: int = 1, level: float = LEVEL) -> bool:
    """Whether ``found`` differs from 0 at ``level``: its 95 % interval, widened as Student's t widens."""
    if found.value is None or found.ci is None or requests < 2:
        return False
    wanted = stats.t.ppf(1 - level / (2 * comparisons), requests - 1)
    widened = float(wanted / stats.t.ppf(0.975, requests - 1))
    low, high = (found.value + (end - found.value) * widened for end in found.ci)
    return not low <= 0 <= high
