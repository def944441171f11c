"""The arithmetic of acceptance: exact, additive, invertible."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib.errors import InputError
from eagle3lib.measuring.acceptance import from_histograms, from_report, reached, steps_of
from eagle3lib.reading.engine_reports import parse_engine_report

unhurried = settings(deadline=None, max_examples=50)  # a busy machine is no failure
histograms = st.lists(st.integers(0, 50), min_size=1, max_size=9)
requests = st.lists(histograms.filter(any), min_size=1, max_size=6)


def acceptance(histograms, **options):
    return from_histograms("test", "offline", "as predicted", histograms, **options)


def test_a_worked_example():
    found = acceptance([[5, 3, 2]], num_draft_tokens=4)
    assert [rate.value for rate in found.marginal] == [0.5, 0.2]
    assert [rate.value for rate in found.conditional] == [0.5, 0.4]
    assert found.accept_length.value == 1.7
    assert (found.accept_rate.numerator, found.accept_rate.denominator) == (7, 30)


def test_both_accept_lengths_of_a_request_cut_short_stand_by_name():
    meta = '{"completion_tokens": 200, "spec_verify_ct": 188, "spec_num_correct_drafts": 11}'
    found = from_report(parse_engine_report(meta, "server"))
    assert round(found.completion_length.value, 4) == 1.0638
    assert round(found.accept_length.value, 4) == 1.0585


@unhurried
@given(histograms, st.integers(0, 3))
def test_what_is_reached_gives_the_histogram_back(histogram, more):
    positions = len(histogram) - 1 + more
    steps = pairwise([*reached(histogram, positions), 0])
    assert [now - after for now, after in steps] == [*histogram, *[0] * more]


@unhurried
@given(requests)
def test_marginals_fall_and_are_the_products_of_conditionals(counts):
    found = acceptance(counts)
    product = last = 1.0
    for marginal, conditional in zip(found.marginal, found.conditional, strict=True):
        product *= conditional.value
        assert marginal.value <= last
        assert marginal.value == pytest.approx(product)
        last = marginal.value
    assert found.accept_length.value == pytest.approx(1 + sum(rate.value for rate in found.marginal))
    assert found.verify_steps == sum(map(steps_of, counts))


@unhurried
@given(requests, st.randoms(use_true_random=False))
def test_the_order_of_requests_and_trailing_zeros_do_not_matter(counts, random):
    shuffled = [[*histogram, 0, 0] for histogram in counts]
    random.shuffle(shuffled)
    positions = max(len(histogram) for histogram in counts)
    one, two = acceptance(counts, num_steps=positions), acceptance(shuffled, num_steps=positions)
    assert [rate.numerator for rate in one.marginal] == [rate.numerator for rate in two.marginal]
    assert one.accept_length.value == two.accept_length.value


@unhurried
@given(requests)
def test_the_pooled_rate_is_that_of_the_summed_histogram(counts):
    found = acceptance(counts)
    assert found.accept_length.value == acceptance([found.histogram]).accept_length.value


@pytest.mark.parametrize("counts", [[], [[0, 0]]])
def test_what_was_not_measured_is_refused(counts):
    with pytest.raises(InputError):
        acceptance(counts)


def test_a_report_that_cannot_be_is_still_read_as_far_as_it_goes():
    report = parse_engine_report('{"spec_correct_drafts_histogram": [1, 0, 0, 2]}', "server")
    assert len(from_report(replace(report, setting=(2, 1, 3))).marginal) == 3
    assert from_report(parse_engine_report("[0, -1]", "list")).accept_length is None
