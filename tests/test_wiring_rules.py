"""What notebook 02 says: the incident of a target too large to run, from trainers' own files alone."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest
import torch

from eagle3lib.errors import InputError
from eagle3lib.findings.config_rules import inspect
from eagle3lib.findings.edits import apply_edits
from eagle3lib.findings.finding import Edit, Finding
from eagle3lib.findings.wiring_rules import (
    accuracy_findings,
    conclusion,
    coverage_findings,
    measured_wiring,
    sample_findings,
    search_findings,
)
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.measuring.wiring_search import Candidate, Search
from eagle3lib.reading.samples import Sample
from eagle3lib.reporting import figures, views
from tests.static_pairs import VOCAB, H, Pair, inspected

IDS = "eagle_config.eagle_aux_hidden_state_layer_ids"
GOOD, POOR = rate([60, 62, 58], [80, 80, 80]), rate([4, 2, 3], [80, 80, 80])


def kimi(folder: Path, ids: list[int], engine: str = "sglang==0.5.23"):  # noqa: ANN201
    """The shape of Kimi-K2.5: nested config, 61 blocks, ids taken as they are unless the first is 1."""
    pair = Pair()
    text = {**pair.target, "num_hidden_layers": 61, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2"}
    pair.target = {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text,
    }  # fmt: skip
    pair.draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
    draft, target = pair.write(folder)
    return inspect(draft, target, pair.launch, engine)


def sample_states(boundaries: tuple[int, ...] | None, known: tuple[int, ...]) -> SampleStates:
    tokens = torch.arange(12) % VOCAB
    states = torch.zeros(12, len(known), H)
    mask = torch.arange(12) >= 4
    sample = Sample("s", tokens, mask, 4, states=states, boundaries=boundaries)
    return SampleStates(sample, {k: states[:, i] for i, k in enumerate(known)})


def test_the_incident_from_three_states_a_token(tmp_path: Path) -> None:
    inspection = kimi(tmp_path, [3, 31, 59])
    trained = [sample_states((0, 3, 31), (0, 3, 31))]
    wiring, words = measured_wiring(inspection, trained)
    assert wiring.boundaries == (0, 3, 31) and "samples' own" in words
    (found,) = sample_findings(inspection, wiring, GOOD)
    assert (found.kind, found.severity, found.edits) == (
        "aux.layers", "error", (Edit("draft config", IDS, [0, 3, 31]),),
    )  # fmt: skip
    assert conclusion(None, [found], wiring, named=True) == ("wiring", (0, 3, 31))
    (doubtful,) = sample_findings(inspection, wiring, POOR)
    assert (doubtful.severity, doubtful.edits) == ("warning", ())


def test_as_trained_is_silent(tmp_path: Path) -> None:
    inspection = kimi(tmp_path, [0, 3, 31])
    wiring, words = measured_wiring(inspection, [sample_states((0, 3, 31), (0, 3, 31))])
    assert (wiring.boundaries, words) == ((0, 3, 31), "as configured")
    assert not list(sample_findings(inspection, wiring, GOOD))


def test_files_that_do_not_name_their_boundaries_settle_nothing(tmp_path: Path) -> None:
    inspection = kimi(tmp_path, [3, 31, 59])
    unnamed = [sample_states(None, (3, 31, 59))]
    wiring, words = measured_wiring(inspection, unnamed)
    assert "do not name" in words and not list(sample_findings(inspection, wiring, GOOD))
    with pytest.raises(InputError):
        unnamed[0].stack((0, 3, 31))


def test_the_answer_says_what_was_measured() -> None:
    """Files of a large target: the row that others are held against stands for the samples' own boundaries."""
    own = Candidate("as configured", Wiring((0, 3, 31)), GOOD, rate([160] * 3, [80] * 3), 0.0, (0.0, 0.0))
    search = Search((own,), own.wiring, (1,), 40, 12.0)
    measured = "on the samples' own boundaries; the captured ones are not at hand"
    said = unescape(views.answer("sound", search, measured, worse_on_traffic=True).data)
    assert "On the samples' own boundaries" in said and "0, 3, 31" in said and "as configured" not in said.split(";")[0]
    assert "aux state 2" in said and "traffic is predicted worse" in said
    assert own.to_json()["boundaries"] == [0, 3, 31]
    (label,) = figures.wirings([own], measured).axes[0].get_yticklabels()
    assert label.get_text() == measured


@pytest.mark.parametrize(
    ("first", "traffic", "answer"),
    [(GOOD, False, "wiring"), (POOR, False, "both"), (GOOD, True, "both"), (None, True, "both")],
)
def test_captured_states_that_are_wrong_count_beside_all_else(
    tmp_path: Path, first: Rate | None, traffic: bool, answer: str
) -> None:
    """The samples' own boundaries showed it; a draft that is poor besides, there or on traffic, is both."""
    found = list(sample_findings(kimi(tmp_path, [3, 31, 59]), Wiring((0, 3, 31)), GOOD))
    if traffic:
        found.append(Finding("quality.domain", "warning", "traffic", "", "", ""))
    own = Candidate("as configured", Wiring((0, 3, 31)), first or GOOD, rate([160] * 3, [80] * 3), 0.0, (0.0, 0.0))
    search = first and Search((own,), own.wiring, (), 40, 12.0)
    assert conclusion(search, found, own.wiring, named=True) == (answer, (0, 3, 31))
    said = unescape(views.answer(answer, search, "as configured", traffic).data)
    assert said.count("wiring is at fault") == (first is GOOD) and ("traffic" in said) == (traffic and first is GOOD)


@pytest.mark.parametrize(("inside", "severity"), [(990, "note"), (900, "warning"), (1000, None)])
def test_coverage(inside: int, severity: str | None) -> None:
    found = coverage_findings(rate([inside] * 5, [1000] * 5))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


#: How a config may spell a switch, and what the search found instead.
CURES = {
    "base, legacy": ({"rope_theta": 1e6}, {"rope_theta": 1e4}),
    "base, transformers 5": ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, {"rope_theta": 1e4}),
    "scaling, legacy": ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, {"rope_scaling": None}),
    "scaling, transformers 5": (
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0}}, {"rope_scaling": None},
    ),
    "both": (
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0}},
        {"rope_theta": 1e4, "rope_scaling": None},
    ),
    "norm, nested": ({"eagle_config": {"norm_before_fc": False}}, {"norm_before_fc": True}),
    "norm, top": ({}, {"norm_before_fc": True}),
    "slot norms, off": ({"use_aux_norm": True}, {"fc_norm": False}),
    "slot norms, on": ({}, {"fc_norm": True}),
    "feedback": ({"norm_output": False}, {"norm_output": True}),
    "tied head": ({"tie_word_embeddings": True}, {"head": "own"}),
    "target's head": ({"draft_vocab_size": None}, {"head": "own"}),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "changes"), CURES.values(), ids=CURES)
def test_every_edit_of_a_remedy_reaches_the_engine(tmp_path: Path, fields: dict, changes: dict) -> None:
    pair = Pair()
    ids = pair.draft["eagle_config"]
    pair.draft |= fields
    pair.draft["eagle_config"] = ids | fields.get("eagle_config", {})
    if "draft_vocab_size" in fields:
        pair.weights["lm_head.weight"] = torch.randn(VOCAB, H)
        del pair.weights["d2t"], pair.weights["t2d"]
    before = inspect(*pair.write(tmp_path), pair.launch, pair.engine)
    configured = before.served.wiring
    wanted = configured.replace(**changes)
    here, there = (Candidate("", each, GOOD, rate([20], [10]), 0, None) for each in (configured, wanted))
    best = Candidate("other", wanted, GOOD, there.accept_length, 1.0, (0.9, 1.1), shown=True)
    findings = list(search_findings(Search((best, here), configured, (), 1, 1.0), before))
    pair.draft = apply_edits(pair.draft, [edit for finding in findings for edit in finding.edits])
    assert inspect(*pair.write(tmp_path), pair.launch, pair.engine).served.wiring == wanted


def test_half_of_good_on_the_samples_own_states_is_sure_enough(tmp_path: Path) -> None:
    """Fed other states a draft is right in one of twenty, so an interval that ends below good still tells."""
    inspection = kimi(tmp_path, [3, 31, 59])
    wiring, _ = measured_wiring(inspection, [sample_states((0, 3, 31), (0, 3, 31))])
    for ci, severity in (((0.38, 0.53), "error"), ((0.15, 0.75), "warning")):
        (found,) = sample_findings(inspection, wiring, Rate(0.457, 641, 1403, ci))
        assert (found.kind, found.severity) == ("aux.layers", severity)


def test_one_request_is_no_ground_for_a_warning() -> None:
    assert not list(accuracy_findings(rate([12], [40]))) and list(accuracy_findings(rate([12, 12, 12], [40, 40, 40])))
    (found,) = coverage_findings(rate([80], [100]))
    assert found.severity == "note"


@pytest.mark.parametrize(("idle", "kind"), [((), "vocab.head_mismatch"), ((1,), "quality.undertrained")])
def test_a_draft_that_is_never_right_is_not_called_undertrained(idle: tuple[int, ...], kind: str) -> None:
    never = Candidate("as configured", Wiring((2, 6, 9)), rate([0] * 8, [80] * 8), rate([10], [10]), 0.0, None)
    (found,) = search_findings(Search((never,), never.wiring, idle, 1, 1.0), inspected())
    assert found.kind == kind


def test_a_tower_without_a_target_stands_as_high_as_what_is_known() -> None:
    for trained, captured in ((None, None), ((0, 3, 16), None), ((0, 3), (2, 5))):
        assert figures.tower(None, trained, captured).axes
