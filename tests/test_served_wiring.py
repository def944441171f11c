"""The wiring that was served is found from responses alone.

``data/served`` holds what SGLang 0.5.23 answered on a CPU to the first eight of the demo's prompts, 96 tokens each,
greedily at 3/1/4: token ids, histograms and the order of steps. The draft was the demo's each time; its config was
the trained one (boundaries 0, 3, 16), the incident's (3, 16, 28), with ids one too high (1, 4, 17), or with
``norm_output``; in float32 but where the name says bfloat16.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagle3lib.engine.speculation import with_settings
from eagle3lib.errors import InputError
from eagle3lib.findings.gap import served_findings
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.draft_weights import Linear
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring import served_wiring as served_wirings
from eagle3lib.measuring.prediction import Prediction, predict
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.measuring.served_wiring import (
    Fit,
    Match,
    Response,
    ServedWiring,
    _ranked,
    find_wiring,
    match,
    served_wiring,
)
from eagle3lib.reading.engine_reports import RequestReport, read_engine_reports
from eagle3lib.reading.setting import Setting
from tests.test_wiring_search import BOUNDARIES, CONFIGURED, planted

SERVED = Path(__file__).parent / "data" / "served"
TRAINED = Wiring(boundaries=(0, 3, 16), rope_theta=1e5)
SETTING = Setting(3, 1, 4)
SLOW = pytest.mark.engine  # starts none, but takes as long


def answered(served: Wiring, ordered: bool = True, trained: Wiring | None = None) -> tuple[Draft, list[Response]]:
    """A draft trained on ``trained``, or on what is served, and what an engine answers with it."""
    draft, dataset = planted(trained or served, noise=1.0)
    responses = []
    for sample_states in dataset:
        steps = predict(draft, served, sample_states, SETTING).steps
        responses.append((sample_states, request(steps.accepted, ordered)))
    return draft, responses


def request(steps: Sequence[int], ordered: bool, num_steps: int = 3) -> RequestReport:
    """What an engine says of a request that took these steps."""
    counts = tuple(steps.count(n) for n in range(num_steps + 1))
    return RequestReport(counts, steps=tuple(steps) if ordered else None)


def kinds(found: ServedWiring, layers: int = BOUNDARIES - 1) -> list[tuple[str, str]]:
    findings = list(served_findings(found, layers=layers))
    assert not any(finding.edits for finding in findings), "the config inspected asks for the right thing already"
    return [(finding.kind, finding.severity) for finding in findings]


@pytest.mark.parametrize(
    ("served", "ordered", "kind"),
    [
        (CONFIGURED.replace(boundaries=(2, 5, 8)), True, "aux.layers"),
        (CONFIGURED.replace(boundaries=(3, 6, 8)), False, "aux.ids_convention"),
        (CONFIGURED.replace(boundaries=(2, 7, 5)), False, "aux.order"),
        (CONFIGURED.replace(norm_before_residual=True), True, "norm.before_residual"),
        (CONFIGURED.replace(shift=1), True, "align.shift"),
        (CONFIGURED, False, None),
    ],
)
def test_another_wiring_is_found_and_named(served: Wiring, ordered: bool, kind: str | None) -> None:
    draft, responses = answered(served, ordered)
    found = find_wiring("made", draft, CONFIGURED, responses, SETTING)
    assert found.best.wiring == served and found.best.exact.value == 1, found.summary()
    assert found.answer == ("another wiring" if kind else "as configured")
    assert kinds(found) == ([(kind, "error")] if kind else []), found.summary()


def test_a_layer_off_the_trained_one_is_found_in_order() -> None:
    served = CONFIGURED.replace(boundaries=(2, 5, 8))
    draft, responses = answered(served, trained=CONFIGURED)
    found = find_wiring("made", draft, CONFIGURED, responses, SETTING)
    assert found.best.wiring == served and kinds(found) == [("aux.layers", "error")], found.summary()


def test_what_nothing_explains_is_said() -> None:
    draft, responses = answered(CONFIGURED)
    other = [(states, said) for (states, _), (_, said) in zip(responses, responses[1:], strict=False)]
    found = find_wiring("made", draft, CONFIGURED, other, SETTING)
    assert found.answer == "none" and found.summary().startswith("No wiring tried")
    assert kinds(found) == [("acceptance.unexplained", "note")]


def test_where_nothing_is_accepted_nothing_is_said() -> None:
    """Any wiring that predicts badly would explain it."""
    draft, responses = answered(CONFIGURED)
    floor = [(states, RequestReport((77,), steps=(0,) * 77)) for states, _ in responses]
    found = find_wiring("made", draft, CONFIGURED, floor, SETTING)
    assert found.answer == "none" and {severity for _, severity in kinds(found)} <= {"note"}


def test_wirings_that_foretell_the_same_are_ties_and_no_finding() -> None:
    """No key turns where there is no attention to speak of: every RoPE base predicts the same."""
    draft, responses = answered(CONFIGURED.replace(rope_theta=5e5))
    found = find_wiring("made", draft, CONFIGURED, responses, SETTING)
    assert found.answer == "as configured" and kinds(found) == []
    assert {fit.wiring.rope_theta for fit in found.ties} >= {5e5, 1e6}


def test_one_bare_histogram_is_never_sure() -> None:
    draft, responses = answered(CONFIGURED.replace(norm_before_residual=True), ordered=False)
    found = find_wiring("made", draft, CONFIGURED, responses[:1], SETTING)
    assert found.answer in ("undecided", "none") and "error" not in dict(kinds(found)).values()
    with pytest.raises(InputError, match="response"):
        find_wiring("made", draft, CONFIGURED, [], SETTING)


def test_a_rounding_slip_of_the_configured_wiring_is_no_finding() -> None:
    draft, responses = answered(CONFIGURED)
    (states, said), *others = responses
    slip = replace(said, steps=(said.steps[0] ^ 1, *said.steps[1:]))
    found = find_wiring("made", draft, CONFIGURED, [(states, slip), *others], SETTING)
    assert "error" not in dict(kinds(found)).values()


@pytest.mark.parametrize("setting", [Setting(1, 1, 2), Setting(8, 1, 9), Setting(3, 4, 8)])
def test_any_setting_matches_itself(setting: Setting) -> None:
    draft, dataset = planted(CONFIGURED, noise=1.0)
    for sample_states in dataset[:2]:
        steps = predict(draft, CONFIGURED, sample_states, setting).steps
        for ordered in (True, False):
            said = request(steps.accepted, ordered, setting.num_steps)
            same = match(draft, CONFIGURED, sample_states, said, setting)
            assert same.missed == 0 and same.informative_equal == same.informative > 0


def fit(wiring: Wiring, missed: list[int], steps: int = 60) -> Fit:
    """A wiring that misses so many of a response's steps, half of which are informative."""
    matches = [Match(steps - n, steps, steps // 2 - n, steps // 2, (n, i)) for i, n in enumerate(missed)]
    return Fit.of(wiring, CONFIGURED, matches)


@pytest.mark.parametrize(
    ("mine", "theirs", "needed"),
    [
        ([0] * 8, [5] * 8, 4),  # four responses at least
        ([0] * 8, [1] * 8, 10),  # ten misses at least
        ([0] * 8, [40, *[0] * 7], 32),  # one response is one case, whatever it misses
        ([2] * 8, [6] * 8, None),  # not three times as many
        ([1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0], None),
    ],
)
def test_so_many_responses_make_one_surely_the_worse(mine: list[int], theirs: list[int], needed: int | None) -> None:
    best, other = fit(CONFIGURED, mine), fit(CONFIGURED.replace(shift=1), theirs)
    assert best.needed(other) == needed and other.needed(best) is None
    assert best.beats(other) == (needed is not None and needed <= 8)


def test_one_more_histogram_right_is_no_evidence() -> None:
    """Bare histograms of bfloat16: configured right in three of eight, a neighbour in four."""
    fits = [
        fit(CONFIGURED, [0, 0, 0, 2, 2, 2, 2, 2]),
        fit(CONFIGURED.replace(rope_theta=1e6), [0, 0, 0, 0, 2, 2, 2, 2]),
    ]
    found = ServedWiring("made", CONFIGURED, tuple(_ranked(fits, CONFIGURED)), 1)
    assert found.answer == "as configured" and kinds(found) == []


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("served", [CONFIGURED, CONFIGURED.replace(boundaries=(2, 5, 8))])
def test_slips_at_random_neither_make_nor_hide_an_error(
    served: Wiring, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 to 3 % of the steps flipped, each moving all that follow; attention counts, so that RoPE bases differ a little.

    The predictions of a wiring are the same whatever was served, so they are made once.
    """
    draft, dataset = planted(served, noise=1.0)
    o = Linear(torch.randn(draft.layers[0].o_proj.weight.shape, generator=torch.Generator().manual_seed(0)))
    draft = replace(draft, layers=(replace(draft.layers[0], o_proj=o),))
    made: dict[tuple[object, ...], Prediction] = {}

    def once(draft: Draft, wiring: Wiring, sample_states: SampleStates, setting: Setting) -> Prediction:
        key = (wiring, sample_states.sample.name, setting)
        if key not in made:
            made[key] = predict(draft, wiring, sample_states, setting)
        return made[key]

    monkeypatch.setattr(served_wirings, "predict", once)
    named = 0
    seeds = 40 if served == CONFIGURED else 12
    for seed in range(seeds):
        draw = random.Random(seed)
        share = draw.uniform(0.01, 0.03)
        responses = []
        for sample_states in dataset:
            steps = flipped(once(draft, served, sample_states, SETTING).runs, share, draw)
            responses.append((sample_states, request(steps, ordered)))
        found = find_wiring("made", draft, CONFIGURED, responses, SETTING)
        errors = [kind for kind, severity in kinds(found) if severity == "error"]
        assert served != CONFIGURED or not errors, found.summary()
        named += found.best.wiring == served and bool(errors) == (served != CONFIGURED)
    assert named >= 0.9 * seeds


def flipped(runs: Sequence[int | None], share: float, draw: random.Random) -> tuple[int, ...]:
    """The walk over ``runs`` with this share of its steps accepting another number of drafts."""
    steps: list[int] = []
    while (at := sum(steps) + len(steps)) < len(runs) and (accepted := runs[at]) is not None:
        others = [n for n in range(SETTING[0] + 1) if n != accepted]
        steps.append(draw.choice(others) if draw.random() < share else accepted)
    return tuple(steps)


@pytest.mark.parametrize(
    ("name", "ordered", "change", "kind"),
    [
        pytest.param("trained", False, "as configured", None, marks=SLOW),
        pytest.param("trained_bfloat16", True, "as configured", None, marks=SLOW),
        pytest.param("trained_bfloat16", False, "as configured", None, marks=SLOW),
        ("layers", True, "boundaries 3, 16, 28 instead of 0, 3, 16", "aux.layers"),
        ("one_off", True, "boundaries 1, 4, 17 instead of 0, 3, 16", "aux.ids_convention"),
        pytest.param("norm_output", True, "norm_output on", "norm.output", marks=SLOW),
        pytest.param("layers_bfloat16", True, "boundaries 3, 16, 28 instead of 0, 3, 16", "aux.layers", marks=SLOW),
    ],
)
def test_what_sglang_served_is_found_without_being_told(
    pair: tuple[Draft, Target], name: str, ordered: bool, change: str, kind: str | None
) -> None:
    draft, target = pair
    path = SERVED / f"{name}.jsonl"
    reports = with_settings(read_engine_reports(path), SETTING, "")
    if not ordered:
        reports = [replace(each, requests=tuple(replace(r, steps=None) for r in each.requests)) for each in reports]
    (found,) = served_wiring(reports, draft, TRAINED, target)
    assert found.best.change == change
    assert found.best.exact.denominator == 8
    assert found.best.exact.numerator >= (7 if "bfloat16" in name else 8), found.summary()
    assert found.answer == ("another wiring" if kind else "as configured")
    assert kinds(found, 30) == ([(kind, "error")] if kind else [])
    assert kind is None or found.best.beats(found.as_configured)
