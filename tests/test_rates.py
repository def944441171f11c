"""Rates are counts divided once; their intervals cover the truth as often as they say."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib.measuring.rates import paired_difference, rate

COUNTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), min_size=1, max_size=20)


@settings(deadline=None)
@given(COUNTS, st.randoms())
def test_pooled_whatever_the_order(counts: list[list[int]], order) -> None:  # noqa: ANN001
    top, bottom = zip(*counts, strict=True)
    found = rate(top, bottom)
    assert (found.numerator, found.denominator) == (sum(top), sum(bottom))
    assert found.value == (sum(top) / sum(bottom) if sum(bottom) else None)
    shuffled = list(counts)
    order.shuffle(shuffled)
    assert rate(*zip(*shuffled, strict=True)).value == found.value
    if found.ci is not None:
        assert 0 <= found.ci[0] <= found.value <= found.ci[1] <= 1
    assert (found.ci is None) == (len(counts) == 1 or not sum(bottom))
    json.dumps(asdict(found), allow_nan=False)


@pytest.mark.parametrize("requests, level", [(12, 0.7), (40, 0.85)])
def test_intervals_cover_where_requests_differ(requests: int, level: float) -> None:
    """Requests whose own rates spread by 0.12; 92 to 97 % of 95 % intervals hold the true pooled rate."""
    draw = np.random.default_rng(7)
    spread = np.clip(level + 0.12 * draw.standard_normal(400_000), 0.01, 0.99)
    hits, trials = 0, 300
    for trial in range(trials):
        own = np.clip(level + 0.12 * draw.standard_normal(requests), 0.01, 0.99)
        bottom = draw.integers(20, 100, requests)
        low, high = rate(draw.binomial(bottom, own), bottom, seed=trial).ci
        hits += low <= spread.mean() <= high
    assert 0.92 <= hits / trials <= 0.97


def test_paired_gain_is_sharper_than_two_intervals() -> None:
    draw = np.random.default_rng(1)
    bottom = draw.integers(40, 60, 30)
    base = draw.binomial(bottom, np.clip(0.5 + 0.2 * draw.standard_normal(30), 0, 1))
    better = np.minimum(bottom, base + 2)
    found = paired_difference(better, bottom, base, bottom)
    alone = rate(base, bottom).ci
    assert found.ci[0] > 0 and found.ci[1] - found.ci[0] < 0.3 * (alone[1] - alone[0])
    assert found.value == pytest.approx((better.sum() - base.sum()) / bottom.sum())
    assert paired_difference(base, bottom, base, bottom).ci == (0, 0)


def test_nothing_counted_is_not_zero() -> None:
    assert asdict(rate([0], [0])) == {"value": None, "numerator": 0, "denominator": 0, "ci": None}
    assert paired_difference([0, 0], [0, 0], [1, 1], [2, 2]).value is None


@pytest.mark.parametrize("top, bottom", [([1, 2], [3]), ([1], [0]), ([1], [-2])])
def test_impossible_counts_are_refused(top: list[int], bottom: list[int]) -> None:
    with pytest.raises(ValueError):
        rate(top, bottom)
