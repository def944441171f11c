"""Where verify steps stood: the same from a walk and from a served stream; parts add up to the whole."""

from __future__ import annotations

import json
from pathlib import Path

import ipywidgets
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib.findings import wiring_rules
from eagle3lib.findings.breakdown_rules import Limit, limits
from eagle3lib.findings.offline import Breakdown, break_down, open_pair
from eagle3lib.measuring.acceptance import from_histograms
from eagle3lib.measuring.accuracy import DepthCounts, Evaluation, Request
from eagle3lib.measuring.prediction import VerifySteps
from eagle3lib.measuring.rates import Rate
from eagle3lib.measuring.steps import (
    by_category,
    by_kind,
    by_position,
    by_prompt_length,
    concatenated,
    first_and_rest,
    predicted_steps,
    served_steps,
    verified_tokens,
    worst,
)
from eagle3lib.reading.engine_reports import parse_engine_report
from eagle3lib.reading.samples import Sample
from eagle3lib.reading.setting import Setting
from eagle3lib.reading.token_kinds import decoder, kind_of
from eagle3lib.reporting import acceptance_views as views
from eagle3lib.reporting import figures, widgets
from tests.static_pairs import Pair, inspected
from tests.tiny import tiny_target

ACCEPTED = st.lists(st.integers(0, 3), min_size=1, max_size=40)
REQUESTS = st.lists(st.tuples(ACCEPTED, st.integers(1, 3000), st.sampled_from(["code", "chat", None])), min_size=1)


def request(accepted: list[int], prompt: int = 5, category: str | None = None) -> pd.DataFrame:
    """The steps of one request, one after the other; token i of its conversation is i."""
    starts = tuple(sum(accepted[:i]) + i for i in range(len(accepted)))
    ids = torch.arange(prompt + starts[-1] + accepted[-1] + 3)
    sample = Sample("x", ids, ids >= prompt, prompt, category)
    return predicted_steps([(VerifySteps(tuple(accepted), starts, True), sample)], 3)


def places(steps: pd.DataFrame) -> list[tuple[int, int, bool]]:
    return list(steps[["accepted", "at", "first"]].itertuples(index=False, name=None))


@settings(deadline=None, max_examples=30)
@given(REQUESTS)
def test_parts_add_up_to_the_whole(requests: list[tuple[list[int], int, str | None]]) -> None:
    table = concatenated([request(*each) for each in requests])
    steps, drafts = len(table), table["accepted"].sum()
    assert table["request"].nunique() == len(requests)
    for cut in (by_position, by_prompt_length):
        found = cut(table)
        assert sum(part.accept_length.denominator for part in found) == steps
        assert sum(part.accept_length.numerator for part in found) == steps + drafts
        spans = [part.span for part in found]
        assert spans == sorted(spans) and all(a[1] < b[0] for a, b in zip(spans, spans[1:], strict=False))
    tried = by_kind(table, str).values()
    assert sum(rate.numerator for rate in tried) == drafts
    assert sum(rate.denominator for rate in tried) == drafts + (table["accepted"] < 3).sum()
    assert all(not p.accept_length.ci or 1 <= p.accept_length.ci[0] <= p.accept_length.ci[1] <= 4 for p in found)


def test_a_prediction_and_a_stream_give_the_same_places() -> None:
    ids = torch.arange(20)
    walk = VerifySteps((2, 0, 3), (0, 3, 4), complete=True)
    sample = Sample("s", ids, ids >= 6, 6, "code")
    offline = predicted_steps([(walk, sample)], 3)
    text = json.dumps({"meta_info": {"spec_correct_drafts_histogram": [1, 0, 1, 1], "prompt_tokens": 6},
                       "accepted_per_step": [2, 0, 3], "category": "code"})  # fmt: skip
    served = served_steps(parse_engine_report(text, "r"))
    assert places(offline) == places(served) == [(2, 7, True), (0, 10, False), (3, 11, False)]
    tried = [(7, True), (8, True), (9, False), (10, False), (11, True), (12, True), (13, True)]
    assert list(verified_tokens(offline)[["token", "right"]].itertuples(index=False, name=None)) == tried
    assert verified_tokens(served).empty  # no ids in that report


def test_each_reply_of_a_conversation_has_its_own_first_step() -> None:
    mask = torch.tensor([0, 0, 1, 1, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    sample = Sample("s", torch.arange(10), mask, 2)
    walk = VerifySteps((0, 0, 1), (0, 1, 5), True)
    steps = predicted_steps([(walk, sample)], 3)
    evaluation = Evaluation((Request("s", None, DepthCounts(3, (1,), (1,)), (walk,) * 3, 2),))
    assert places(wiring_rules.evaluated_steps(evaluation, 3)) == places(steps)  # the same without text
    assert places(steps) == [(0, 3, True), (0, 4, False), (1, 8, True)]
    two = predicted_steps([(VerifySteps((0, 0), (0, 1), True), sample)], 3)
    assert [group.label for group in first_and_rest(two)] == ["first after prefill", "all others"]


#: text of a token -> its kind
KINDS = {
    " 42": "digits", "3.5": "digits", ",": "punctuation", " —": "punctuation", "\n\n": "line break or space",
    "<|im_end|>": "special token", "():": "code or symbol", "my_name": "code or symbol",
    " Berlin": "capitalised word or name", "École": "capitalised word or name",
    " the": "other word", "日本": "other word", " getItem": "code or symbol",
}  # fmt: skip


def test_kinds_of_tokens() -> None:
    assert {text: kind_of(text) for text in KINDS} == KINDS


def test_every_view_draws_or_says_why_not(tmp_path: Path) -> None:
    tiny_target(tmp_path)
    requests = [request([0, 1, 3, 2] * 15, 30 * i, "ab"[i % 2]) for i in range(1, 9)]
    logged = served_steps(parse_engine_report("Decode batch, accept len: 2.0", "log"))
    found = views.step_sources(concatenated(requests), {"served.jsonl": concatenated(requests[:3]), "log": logged})
    assert [source.kind for source in found] == ["offline", "engine"]
    chains = {(n, 1, n + 1): Rate(1.5 + 0.1 * min(n, 3), 1, 1, (1.4, 2.0)) for n in range(1, 5)}
    served = from_histograms("served.jsonl", "engine", "", [(5, 3, 2)])
    drawn = {
        "curves": views.curves([served], None),
        "histogram": views.histogram([served]),
        "steps": views.steps(chains, [served], (3, 1, 4)),
        "lengths": views.lengths(found, [Limit(100, "context.length", "the end")]),
        "parts": views.parts(found),
        "kinds": views.kinds(found, lambda token: "even" if token % 2 == 0 else "odd"),
    }
    for name, (figure, words) in drawn.items():
        figure.savefig(tmp_path / f"{name}.png")
        assert words.endswith(".")
    assert "up to num_steps 3" in drawn["steps"][1] and "lies within" in drawn["lengths"][1]
    assert "50% of the steps accept nothing, 20% all 2" in drawn["histogram"][1]
    nothing = [
        views.curves([], None),
        views.histogram([]),
        views.steps({}, [], (3, 1, 4)),
        views.lengths([], []),
        views.parts([]),
        views.kinds([], None),
    ]
    assert all(figure is None and words for figure, words in nothing)
    assert figures.acceptance([served], served).axes


def test_the_worst_requests_show_text_only_when_asked_and_escaped(tmp_path: Path) -> None:
    tiny_target(tmp_path)
    steps = concatenated([request([3] * 9), request([0] * 9, category="<b>"), request([0])])
    assert worst(steps, 1)["accepted"].tolist() == [0]
    page = views.worst_table(steps).to_html()
    assert "&lt;b&gt;" in page and "<b>" not in page and "w9" not in page
    assert "w9" in views.worst_table(steps, str(tmp_path)).to_html()
    assert "w7 w8" in decoder(tmp_path)([7, 8])


@pytest.mark.parametrize(
    "setting, words",
    [
        ((3, 1, 4), "3/1/4: accept length 1.800"),
        ((2, 1, 16), "asked 16"),
        ((3, 4, 8), "not computed"),
        ((4, 1, 5), "+11"),
    ],
)
def test_the_form_looks_up_what_was_computed(setting: tuple[int, int, int], words: str) -> None:
    known = {(2, 1, 3): Rate(1.7, 17, 10, None), (3, 1, 4): Rate(1.8, 18, 10, None), (4, 1, 5): Rate(2.0, 2, 1, None)}
    assert words in widgets.predicted(known, setting, (3, 1, 4))
    assert widgets.settings_form(known, (3, 1, 4)).children[0].options == (2, 3, 4)
    assert views.settings_table(known, (3, 1, 4)).data["in force"].tolist() == [False, True, False]


def test_a_form_answers_without_an_output_widget() -> None:
    """nbclient answers output widgets on the channel of the kernel's replies, loses one, and a headless run hangs."""
    known = {(2, 1, 3): Rate(1.7, 17, 10, None), (3, 1, 4): Rate(1.8, 18, 10, None)}
    steps, *_, shown = widgets.settings_form(known, (3, 1, 4)).children
    assert "accept length 1.800" in shown.value
    steps.value = 2
    assert "accept length 1.700" in shown.value  # 2/1/4 is 2/1/3: a chain
    ids, launch, shown = (form := widgets.what_if(inspected())).children
    before = shown.value
    ids.value = "[2, 6, 9]"
    assert shown.value != before
    ids.value = "2, 6"
    assert "is no list" in shown.value
    assert not any(isinstance(child, ipywidgets.Output) for child in form.children)


def test_categories_stand_from_worst_to_best() -> None:
    steps = [request([0, 1], category="a"), request([3, 3], category="b"), request([1, 1], category="c")]
    assert [group.label for group in by_category(concatenated(steps))] == ["a", "c", "b"]


def test_limits_are_known_from_the_drafts_config_alone(tmp_path: Path) -> None:
    pair = Pair()
    draft, _ = pair.write(tmp_path)
    inspection, why = open_pair(str(draft), "", "", pair.engine, tmp_path)
    assert [(limit.kind, limit.tokens) for limit in limits(inspection)] == [("context.length", 2048)]
    found = break_down(why, "", Setting(3, 1, 4))
    assert isinstance(found, Breakdown) and not found.sources and found.steps.empty
    assert found.left_out == "Not predicted: that needs draft and target."
