"""Where verify steps stood: the same from a walk and from a served stream; parts add up to the whole."""

from __future__ import annotations

import json
from pathlib import Path

import ipywidgets
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib.findings import sample_rules
from eagle3lib.findings.breakdown import Breakdown, break_down
from eagle3lib.findings.breakdown_rules import Limit, limits
from eagle3lib.findings.offline import open_pair
from eagle3lib.measuring.acceptance import from_histograms
from eagle3lib.measuring.accuracy import DepthCounts
from eagle3lib.measuring.evaluation import Evaluation, Request
from eagle3lib.measuring.prediction import VerifySteps
from eagle3lib.measuring.rates import Rate
from eagle3lib.measuring.trails import (
    Step,
    Trail,
    by_category,
    by_kind,
    by_position,
    by_prompt_length,
    first_and_rest,
    from_report,
    from_walk,
    worst,
)
from eagle3lib.reading.engine_reports import parse_engine_report
from eagle3lib.reading.samples import Sample
from eagle3lib.reading.token_kinds import decoder, kind_of
from eagle3lib.reporting import acceptance_views as views
from eagle3lib.reporting import figures, widgets
from tests.static_pairs import Pair, inspected
from tests.tiny import tiny_target

ACCEPTED = st.lists(st.integers(0, 3), min_size=1, max_size=40)
REQUESTS = st.lists(st.tuples(ACCEPTED, st.integers(1, 3000), st.sampled_from(["code", "chat", None])), min_size=1)


def trail(accepted: list[int], prompt: int = 5, category: str | None = None) -> Trail:
    at, found = prompt + 1, []
    for count in accepted:
        found.append(Step(count, at, not found))
        at += count + 1
    return Trail("x", tuple(found), 3, prompt, category, tuple(range(at + 1)))


@settings(deadline=None, max_examples=30)
@given(REQUESTS)
def test_parts_add_up_to_the_whole(requests: list[tuple[list[int], int, str | None]]) -> None:
    trails = [trail(*request) for request in requests]
    steps, drafts = sum(len(t.steps) for t in trails), sum(t.accepted for t in trails)
    for cut in (by_position, by_prompt_length):
        found = cut(trails)
        assert sum(part.accept_length.denominator for part in found) == steps
        assert sum(part.accept_length.numerator for part in found) == steps + drafts
        spans = [part.span for part in found]
        assert spans == sorted(spans) and all(a[1] < b[0] for a, b in zip(spans, spans[1:], strict=False))
    tried = by_kind(trails, str).values()
    assert sum(rate.numerator for rate in tried) == drafts
    assert sum(rate.denominator for rate in tried) == drafts + sum(s.accepted < 3 for t in trails for s in t.steps)
    assert all(not p.accept_length.ci or 1 <= p.accept_length.ci[0] <= p.accept_length.ci[1] <= 4 for p in found)


def test_a_walk_and_a_stream_give_the_same_places() -> None:
    ids = torch.arange(20)
    walk = VerifySteps((2, 0, 3), (0, 3, 4), complete=True)
    sample = Sample("s", ids, ids >= 6, 6, "code")
    offline = from_walk(walk, sample, 3)
    text = json.dumps({"meta_info": {"spec_correct_drafts_histogram": [1, 0, 1, 1], "prompt_tokens": 6},
                       "accepted_per_step": [2, 0, 3], "category": "code"})  # fmt: skip
    [served] = from_report(parse_engine_report(text, "r"))
    assert offline.steps == served.steps == (Step(2, 7, True), Step(0, 10, False), Step(3, 11, False))
    assert offline.tried() == [(7, True), (8, True), (9, False), (10, False), (11, True), (12, True), (13, True)]
    assert served.tried() == []  # no ids in that report


def test_each_reply_of_a_conversation_has_its_own_first_step() -> None:
    mask = torch.tensor([0, 0, 1, 1, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    sample = Sample("s", torch.arange(10), mask, 2)
    walk = VerifySteps((0, 0, 1), (0, 1, 5), True)
    steps = from_walk(walk, sample, 3).steps
    [counted] = sample_rules.trails(Evaluation((Request("s", None, DepthCounts(3, (1,), (1,)), (walk,) * 3, 2),)), 3)
    assert counted.steps == steps  # the same from an evaluation, which holds no text
    assert [(step.at, step.first) for step in steps] == [(3, True), (4, False), (8, True)]
    assert [part.label for part in first_and_rest([from_walk(VerifySteps((0, 0), (0, 1), True), sample, 3)])] == [
        "first after prefill", "all others",
    ]  # fmt: skip


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
    trails = [trail([0, 1, 3, 2] * 15, 30 * i, "ab"[i % 2]) for i in range(1, 9)]
    found = views.groups(trails, {"served.jsonl": trails[:3], "log": []})
    assert [group.kind for group in found] == ["offline", "engine"]
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
    trails = [trail([3] * 9), trail([0] * 9, category="<b>"), trail([0])]
    assert [t.accepted for t in worst(trails, 1)] == [0]
    page = views.worst_table(worst(trails)).data
    assert "&lt;b&gt;" in page and "<b>" not in page and "w9" not in page
    assert "w9" in views.worst_table(worst(trails), str(tmp_path)).data
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
    assert "in force" in views.settings_table(known, (3, 1, 4)).data


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
    trails = [trail([0, 1], category="a"), trail([3, 3], category="b"), trail([1, 1], category="c")]
    assert [part.label for part in by_category(trails)] == ["a", "c", "b"]


def test_limits_are_known_from_the_drafts_config_alone(tmp_path: Path) -> None:
    pair = Pair()
    draft, _ = pair.write(tmp_path)
    inspection, why = open_pair(str(draft), "", "", pair.engine, tmp_path)
    assert [(limit.kind, limit.tokens) for limit in limits(inspection)] == [("context.length", 2048)]
    assert break_down(why, "", (3, 1, 4)) == Breakdown(left_out="Not predicted: that needs draft and target.")
