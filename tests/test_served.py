"""Predicted against served steps, on hand-made predictions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3lib.measuring.prediction import Prediction, simulate_verify
from eagle3lib.measuring.served import Agreement, agreement
from eagle3lib.reading.engine_reports import RequestReport


def made(*runs: int | None) -> Prediction:
    """One prediction a start; ``None`` is not known."""
    counts, sure = torch.tensor([run or 0 for run in runs]), torch.tensor([run is not None for run in runs])
    return Prediction(runs, simulate_verify(counts, sure))


def compared(prediction: Prediction, steps: Sequence[int] | None, histogram: Sequence[int] = ()) -> Agreement:
    return agreement([prediction], [RequestReport(tuple(histogram), steps=steps and tuple(steps))])


def test_each_served_step_is_compared_at_its_own_start() -> None:
    """A step that differs does not spoil those after it."""
    found = compared(made(3, 0, 1, 0, 0, 1, 2, 2), (1, 1, 0, 1, 2))
    # served starts 0, 2, 4, 5, 7: predicted there 3, 1, 0, 1, 2
    assert (found.equal, found.steps, found.left_out) == (4, 5, 0)
    assert found.mismatches == ({"request": 0, "start": 0, "predicted": 3, "served": 1},)


def test_steps_past_an_incomplete_prediction_are_left_out_and_counted() -> None:
    found = compared(made(1, 0, 1, 0, None), (1, 1, 3))
    assert (found.equal, found.steps, found.left_out) == (2, 2, 1)


def test_histograms_are_compared_where_the_order_is_not_known() -> None:
    found = compared(made(3, 9, 9, 9, 0, 1, 9), None, [1, 0, 1, 1])
    assert (found.equal, found.steps, found.ordered_steps) == (2, 3, 0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_every_walk_agrees_with_itself(runs: list[int]) -> None:
    found = made(*runs)
    histogram = found.steps.histogram(3)
    for order in (found.steps.accepted, None):
        same = compared(found, order, histogram)
        assert same.equal == same.steps == len(found.steps.accepted)


@given(
    st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
)
def test_no_more_steps_agree_than_were_compared(runs: list[int | None], served: list[int]) -> None:
    histogram = [served.count(j) for j in range(4)]
    for order in (served, None):
        found = compared(made(*runs), order, histogram)
        assert 0 <= found.equal <= found.steps
        assert found.steps + found.left_out == len(served)
