"""Predicted against served steps, on hand-made walks."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3lib.measuring.forecast import agreement
from eagle3lib.measuring.prediction import Walk, walk


def made(accepted: tuple[int, ...], complete: bool = True) -> Walk:
    starts, at = [], 0
    for count in accepted:
        starts.append(at)
        at += count + 1
    return Walk(accepted, tuple(starts), complete)


def test_a_wrong_step_is_wrong_until_the_walks_meet_again() -> None:
    found = agreement([made((3, 0, 1, 2))], [((1, 1, 0, 1, 2), ())])
    # served starts 0, 2, 4, 5, 7; predicted 0, 4, 5, 7
    assert (found.equal, found.steps, found.left_out) == (3, 5, 0)


def test_steps_past_an_incomplete_prediction_are_left_out_and_counted() -> None:
    found = agreement([made((1, 1), complete=False)], [((1, 1, 3), ())])
    assert (found.equal, found.steps, found.left_out) == (2, 2, 1)


def test_histograms_are_compared_where_the_order_is_not_known() -> None:
    found = agreement([made((3, 0, 1))], [(None, [1, 0, 1, 1])])
    assert (found.equal, found.steps, found.ordered_steps) == (2, 3, 0)


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=3, max_size=3))
def test_every_walk_agrees_with_itself(rows: list[list[bool]]) -> None:
    found = walk(torch.tensor(rows), 3)
    histogram = found.histogram(3)
    for served in ((found.accepted, histogram), (None, histogram)):
        same = agreement([found], [served])
        assert same.equal == same.steps == len(found.accepted)
