"""The verdict against hand-written records: ranking, confidence, silence, too little evidence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lib.findings.verdict import verdict

STEMS = ("01_config_inspection", "02_manual_forward", "03_acceptance", "04_capture_diff", "05_throughput_sweep")


def finding(kind: str, severity: str = "error", **more: object) -> dict[str, object]:
    texts = dict(subject="s", evidence="e", consequence="c", remedy=f"mend {kind}", edits=[])
    return {"kind": kind, "severity": severity, **texts, **more}


def record(*findings: dict[str, object], status: str = "finished", **results: object) -> dict[str, object]:
    return {"status": status, "findings": list(findings), "results": results}


ENGINE = {"kind": "engine", "accept_length": {"value": 2.0}}
OFFLINE = {"kind": "offline", "accept_length": {"value": 2.1}}
SERVED = {"sources": [OFFLINE, ENGINE]}
ALONE = {"sources": [ENGINE]}
LESS = {"sources": [OFFLINE, {"kind": "engine", "accept_length": {"value": 1.15}}], "num_steps": 3}
AGREE = {"sources": [ENGINE], "agreement": {"x": {"equal": 9, "steps": 9}}}
SOUND = {"answer": "sound", "predicted_accept_length": {"3": {"value": 2.1}}}
FED = {"streams": [{"boundary": 0, "expected_boundary": 0}, {"boundary": 3, "expected_boundary": 3}]}
UNFED = {"streams": [{"boundary": 0, "expected_boundary": None}]}


def test_incident_names_the_layers_before_the_flags_and_the_symptom_last() -> None:
    said = verdict(
        {
            STEMS[0]: record(finding("flags.steps_tokens")),
            STEMS[1]: record(finding("aux.layers")),
            STEMS[2]: record(finding("acceptance.floor")),
            STEMS[3]: record(finding("aux.layers")),
        },
        {},
    )
    assert [d.kind for d in said.diagnosis] == ["aux.layers", "flags.steps_tokens", "acceptance.floor"]
    assert said.diagnosis[0].confidence == pytest.approx(0.99) and said.diagnosis[0].notebooks == (STEMS[1], STEMS[3])
    assert said.healthy is False and said.next_step.startswith("aux.layers: mend aux.layers")


def test_a_certain_limit_ranks_above_a_doubtful_cause() -> None:
    said = verdict({STEMS[0]: record(finding("rope.theta", "warning"), finding("flags.steps_tokens"))}, {})
    assert [d.kind for d in said.diagnosis] == ["flags.steps_tokens", "rope.theta"]


def test_a_guess_gives_way_to_what_was_measured_about_the_same_thing() -> None:
    guess = finding("aux.ids_convention", "warning")
    said = verdict(
        {STEMS[0]: record(guess, finding("rope.theta", "warning")), STEMS[3]: record(finding("aux.layers"))}, {}
    )
    assert [d.kind for d in said.diagnosis] == ["aux.layers", "rope.theta"]
    assert [d.kind for d in verdict({STEMS[0]: record(guess)}, {}).diagnosis] == ["aux.ids_convention"]


@pytest.mark.parametrize(
    ("records", "healthy"),
    [
        ({}, None),
        ({STEMS[0]: record()}, None),
        ({STEMS[1]: record(answer="sound")}, None),
        ({STEMS[0]: record(), STEMS[1]: record(answer="undecided")}, None),
        ({STEMS[0]: record(status="partial"), STEMS[1]: record(answer="sound")}, None),
        ({STEMS[0]: record(), STEMS[2]: record(sources=[{"kind": "offline"}])}, None),
        ({STEMS[0]: record(), STEMS[3]: record(**UNFED)}, None),
        ({STEMS[0]: record(), STEMS[2]: record(**ALONE)}, None),
        ({STEMS[0]: record(), STEMS[2]: record(**LESS)}, None),
        (
            {STEMS[0]: record(), STEMS[1]: record(**SOUND), STEMS[2]: record(sources=LESS["sources"][1:], num_steps=3)},
            None,
        ),
        ({STEMS[0]: record(), STEMS[1]: record(answer="model"), STEMS[2]: record(**ALONE)}, None),
        ({STEMS[0]: record(), STEMS[1]: record(answer="model"), STEMS[2]: record(**SERVED)}, None),
        (
            {
                STEMS[0]: record(),
                STEMS[1]: record(answer=[]),
                STEMS[2]: record(sources=7),
                STEMS[3]: record(streams=[1]),
            },
            None,
        ),
        ({STEMS[0]: record(), STEMS[2]: record(**AGREE)}, True),
        ({STEMS[0]: record(), STEMS[1]: record(**SOUND), STEMS[2]: record(**ALONE)}, True),
        ({STEMS[0]: record(), STEMS[1]: record(answer="sound")}, True),
        ({STEMS[0]: record(), STEMS[3]: record(**FED)}, True),
        ({STEMS[0]: record(finding("rope.scaling", "note")), STEMS[2]: record(**SERVED)}, True),
        ({STEMS[0]: record(finding("quality.undertrained", "warning"))}, False),
    ],
)
def test_healthy_needs_files_and_behaviour(records: dict, healthy: bool | None) -> None:
    said = verdict(records, {stem: "no record" for stem in STEMS if stem not in records})
    assert said.healthy is healthy and bool(said.diagnosis) == (healthy is False) and said.next_step


def test_what_an_engine_says_alone_asks_for_a_prediction() -> None:
    said = verdict({STEMS[0]: record(), STEMS[2]: record(**ALONE)}, {STEMS[1]: "no record"})
    assert "no prediction beside it" in said.next_step and STEMS[1] in said.next_step
    said = verdict({STEMS[0]: record(), STEMS[1]: record(answer="model"), STEMS[2]: record(**LESS)}, {})
    assert "02 answers 'model'" in said.next_step and "1.15 where 2.10 was predicted" in said.next_step


kinds = st.sampled_from(["aux.layers", "aux.order", "flags.lossy", "acceptance.floor", "vocab.map.absolute"])
severities = st.sampled_from(["error", "warning", "note"])


@given(st.dictionaries(st.sampled_from(STEMS), st.lists(st.builds(finding, kinds, severities), max_size=4)))
def test_one_diagnosis_a_cause_with_a_confidence(found: dict[str, list]) -> None:
    said = verdict({stem: record(*findings) for stem, findings in found.items()}, {})
    told = {f["kind"] for findings in found.values() for f in findings if f["severity"] != "note"}
    errors = {f["kind"] for findings in found.values() for f in findings if f["severity"] == "error"}
    assert errors <= {d.kind for d in said.diagnosis} <= told
    assert len({d.kind for d in said.diagnosis}) == len(said.diagnosis)
    assert all(0.5 <= d.confidence < 1 for d in said.diagnosis)


def test_what_files_suspect_and_02_refutes_is_left_alone() -> None:
    """Edits of the config after files alone would break weights that predict well as they are served."""
    edits = [{"where": "draft config", "key": "fc_norm", "value": True}]
    guess, engine = finding("norm.fc", edits=edits), {"engine": {"fails_at_start": []}}
    sound = SOUND | {"measured": "as configured"}
    said = verdict({STEMS[0]: record(guess, **engine), STEMS[1]: record(**sound)}, {})
    assert [(d.kind, d.confidence, d.edits) for d in said.diagnosis] == [("norm.fc", 0.1, ())]
    assert said.healthy is None and "Change nothing" in said.next_step
    for other in (
        {STEMS[0]: record(guess, **engine), STEMS[1]: record(**SOUND, measured="on the samples' own boundaries")},
        {STEMS[0]: record(guess, engine={"fails_at_start": ["x"]}), STEMS[1]: record(**sound)},
        {STEMS[0]: record(guess, **engine), STEMS[1]: record(guess, **sound)},
        {STEMS[0]: record(finding("rope.theta", edits=edits), **engine), STEMS[1]: record(**sound)},
        {STEMS[0]: record(guess, **engine)},
    ):
        said = verdict(other, {})
        assert said.healthy is False and said.diagnosis[0].edits and said.diagnosis[0].confidence >= 0.9


def test_a_record_that_cannot_be_read_leaves_it_open() -> None:
    records = {STEMS[0]: record(), STEMS[2]: record(**SERVED)}
    assert verdict(records, {STEMS[1]: "no record"}).healthy is True
    assert verdict(records, {STEMS[1]: "02_manual_forward.json: found an empty file"}).healthy is None


@pytest.mark.parametrize(
    ("more", "healthy"),
    [
        ({"expected_from": "the parameter trained_boundaries"}, True),
        ({"expected_from": "the draft's config, under its trainer's numbering"}, None),
        ({"first_divergence": "attention_output"}, None),
    ],
)
def test_a_capture_shows_health_where_somebody_but_the_config_says_what_is_right(more: dict, healthy: bool) -> None:
    assert verdict({STEMS[0]: record(), STEMS[3]: record(**FED, **more)}, {}).healthy is healthy
