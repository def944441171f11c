"""Healthy draws raise no alarm at the stated level, and planted faults are found and named by their shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from eagle3lib.findings.acceptance_rules import ceiling_findings, floor_findings, mode_findings
from eagle3lib.findings.breakdown_rules import Limit, category_findings, length_findings, report_sides, step_sides
from eagle3lib.findings.gap import gap, prediction_findings
from eagle3lib.measuring.acceptance import Acceptance, from_histograms, from_report
from eagle3lib.measuring.steps import concatenated
from eagle3lib.reading.engine_reports import EngineReport, RequestReport
from eagle3lib.reading.setting import Setting
from tests.test_steps import request

USUAL = (0.6, 0.55, 0.5)
#: Flags of SGLang 0.5.23 that make another experiment of a run.
NO_MODES = (
    "revision", "load_format", "model_path", "lora_paths", "enable_lora", "max_lora_rank", "quantization", "dtype",
    "kv_cache_dtype", "tokenizer_path", "chat_template", "sampling_defaults", "preferred_sampling_params",
    "speculative_num_steps", "json_model_override_args", "temperature",
)  # fmt: skip
LIMIT = Limit(2048, "context.length", "the draft's max_position_embeddings")


def steps(draw: np.random.Generator, right: Sequence[float], count: int, spread: float = 0.0) -> list[int]:
    """Accepted drafts of ``count`` steps of one request, whose own rates lie around ``right``."""
    own = np.clip(np.asarray(right) + spread * draw.standard_normal(), 0.01, 0.99)
    return np.cumprod(draw.random((count, len(right))) < own, axis=1).sum(axis=1).tolist()


def histogram(accepted: Sequence[int]) -> tuple[int, ...]:
    return tuple(np.bincount(accepted, minlength=4).tolist())


def report(name: str, histograms: Sequence[Sequence[int]], **flags: object) -> EngineReport:
    requests = [
        RequestReport(tuple(h), sum(h), proposed=3 * sum(h), prompt_tokens=20 + i) for i, h in enumerate(histograms)
    ]
    return EngineReport(name, "histogram", tuple(requests), flags)


def rounded(draw: np.random.Generator, accepted: Sequence[int]) -> list[int]:
    """The same steps served in another precision."""
    return [int(draw.integers(0, 4)) if draw.random() < 0.02 else count for count in accepted]


def alarms(draw: np.random.Generator, requests: int, each: int) -> int:
    """Findings on one healthy setup: independent draws of the same rates wherever two things are compared.

    But for the prediction, which is on the same tokens: there one step in fifty rounds the other way.
    """
    healthy = [steps(draw, USUAL, each, 0.1) for _ in range(requests)]
    again = [steps(draw, USUAL, each, 0.1) for _ in range(requests)]
    table = concatenated([request(s, int(draw.integers(20, 4000)), "abcd"[i % 4]) for i, s in enumerate(healthy)])
    predicted, served = [histogram(s) for s in again], [histogram(s) for s in healthy]
    counted = sum(map(np.array, served))
    whole = Acceptance("x", "engine", "", int(counted.sum()), tuple(counted.tolist()))
    found = [
        *prediction_findings("x", [histogram(rounded(draw, s)) for s in healthy], served),
        *length_findings("x", *step_sides(table, LIMIT.tokens), LIMIT),
        *category_findings("x", table),
        *mode_findings([report("a", predicted, tp_size=1), report("b", served, tp_size=2)]),
        *ceiling_findings(whole, Setting(3, 1, 4), 4),
    ]
    return sum(finding.severity != "note" for finding in found)


@pytest.mark.parametrize("requests, each", [(3, 30), (8, 60), (20, 40)])
def test_healthy_draws_raise_no_alarm(requests: int, each: int) -> None:
    """180 setups a size, five questions each: at 0.1 % a question one alarm is to be expected, at most two pass."""
    draw = np.random.default_rng(requests)
    assert sum(alarms(draw, requests, each) for _ in range(180)) <= 2


#: fault -> what is right at each position
FAULTS = {"flat hit": (0.3, 0.3, 0.3), "tail hit": (0.6, 0.25, 0.2), "floor": (0.01, 0.0, 0.0)}


@pytest.mark.parametrize("shape", FAULTS)
@pytest.mark.parametrize("requests", [12, 40])
def test_a_planted_fault_is_found_and_named(shape: str, requests: int) -> None:
    draw = np.random.default_rng(5)
    predicted = [histogram(steps(draw, USUAL, 60, 0.05)) for _ in range(requests)]
    served = [histogram(steps(draw, FAULTS[shape], 90, 0.05 * (shape != "floor"))) for _ in range(requests)]
    [finding] = prediction_findings("server", predicted, served)
    assert (finding.kind, finding.severity) == ("acceptance.below_prediction", "error")
    assert f"A {shape}" in finding.evidence
    words = gap("server", predicted, served).sentence()
    assert "below what these weights do" in words and shape in words
    assert [f.kind for f in floor_findings(from_histograms("x", "engine", "", served))] == (
        ["acceptance.floor"] if shape == "floor" else []
    )


#: histograms of the requests, num_steps -> whether it is a floor
FLOORS = [
    ([(177, 11)] * 6, 3, True), ([(176, 12)] * 6, 3, True), ([(188,), (177, 11)], None, True), ([(8,)] * 5, 3, True),
    ([(90, 6, 3, 1)] * 6, 3, False), ([(92, 8)] * 6, 1, False), ([(92, 8)] * 6, 2, True), ([(98, 2)], 1, True),
    ([(13,)] * 3, 3, False), ([(30, 8, 2)], 3, False),
]  # fmt: skip


@pytest.mark.parametrize(("served", "num_steps", "floor"), FLOORS)
def test_a_floor_is_next_to_nothing_over_enough_steps(served: list, num_steps: int | None, floor: bool) -> None:
    found = from_histograms("server", "engine", "", served, num_steps=num_steps)
    assert [f.kind for f in floor_findings(found, num_steps)] == ["acceptance.floor"] * floor


def test_what_serves_as_predicted_is_said_in_words() -> None:
    draw = np.random.default_rng(1)
    served = [histogram(steps(draw, USUAL, 60)) for _ in range(9)]
    assert "no difference to speak of" in gap("server", served, served).sentence()
    assert gap("server", [], []) is None
    assert "no interval" in gap("server", served[:1], served[:1]).sentence()
    [finding] = prediction_findings("server", [histogram(steps(draw, FAULTS["flat hit"], 60)) for _ in served], served)
    assert finding.kind == "flags.lossy"


def test_a_fall_beyond_the_drafts_positions_is_a_length_hit() -> None:
    draw = np.random.default_rng(2)
    prompts = [500, 900, 1500, 1200, 700, 2500, 3000, 2600, 4000, 2200]
    accepted = [steps(draw, USUAL if prompt < 2048 else (0.1, 0.1, 0.1), 60) for prompt in prompts]
    requests = [
        RequestReport(histogram(a), 60, completion_tokens=61 + sum(a), prompt_tokens=p)
        for a, p in zip(accepted, prompts, strict=True)
    ]
    by_total = report_sides(EngineReport("x", "histogram", tuple(requests)), 2048)
    in_order = step_sides(concatenated([request(a, p) for a, p in zip(accepted, prompts, strict=True)]), 2048)
    for sides in (by_total, in_order):
        [finding] = length_findings("server", *sides, LIMIT)
        assert (finding.kind, finding.severity) == ("context.length", "warning") and "length hit" in finding.evidence
    [finding] = length_findings(
        "server", *in_order, Limit(2048, "attention.window", "window trained 2048, served None")
    )
    assert (finding.kind, finding.severity) == ("attention.window", "error")
    assert not list(length_findings("server", *(side.head(5) for side in in_order), LIMIT))  # nothing lies beyond


def test_one_poor_kind_of_request_is_named() -> None:
    draw = np.random.default_rng(3)
    poor = (0.2, 0.2, 0.2)
    chat = [request(steps(draw, poor if i % 3 else USUAL, 60), 50, "chat" if i % 3 else "code") for i in range(30)]
    assert next(category_findings("x", concatenated(chat))).subject == "x: chat"
    everywhere = [request(steps(draw, poor, 60), 50, "ab"[i % 2]) for i in range(30)]
    assert not list(category_findings("x", concatenated(everywhere)))  # poor everywhere is no domain


def test_a_ceiling_lower_than_the_draft_tokens_asked_for_is_named() -> None:
    served = from_histograms("x", "engine", "", [(40, 60)])
    for num_steps in (1, None):
        [finding] = ceiling_findings(served, Setting(num_steps, 1), 16)
        assert finding.kind == "flags.steps_tokens" and "none of 100" in finding.evidence
    assert not list(ceiling_findings(served, Setting(1, 8, 9), 16))
    assert not list(ceiling_findings(served, Setting(1, 1, 2), None))


def test_runs_that_differ_by_one_flag_are_compared_and_others_not() -> None:
    draw = np.random.default_rng(4)
    good = [histogram(steps(draw, USUAL, 60)) for _ in range(12)]
    poor = [histogram(steps(draw, FAULTS["flat hit"], 60)) for _ in range(12)]
    plain, mode = report("tp4.jsonl", good, tp_size=4), report("dp.jsonl", poor, tp_size=4, enable_dp_attention=True)
    [finding] = mode_findings([plain, mode])
    assert (finding.kind, finding.severity) == ("engine.mode", "error")
    assert "--enable-dp-attention" in finding.evidence and "less in dp.jsonl" in finding.evidence
    other_steps = report("b", poor, tp_size=4, speculative_num_steps=5)
    two_flags = report("b", poor, tp_size=2, enable_dp_attention=True)
    other_prompts = EngineReport("b", "histogram", mode.requests[::-1], mode.flags)
    for other in (report("b", good, tp_size=2), other_steps, two_flags, other_prompts, report("b", poor)):
        assert not list(mode_findings([plain, other]))
    for name in NO_MODES:
        assert not list(mode_findings([plain, report("b", poor, tp_size=4, **{name: "x"})])), name
    assert next(mode_findings([from_log(2.36), from_log(1.49, dp=True)])).severity == "error"
    assert from_report(plain).verify_steps == 720


def test_without_flags_two_drafts_are_no_two_modes() -> None:
    """Before and after a cure, in one folder: the same prompts, the same budget, another acceptance."""
    draw = np.random.default_rng(6)
    before, after = ([histogram(steps(draw, right, 60)) for _ in range(40)] for right in (FAULTS["floor"], USUAL))
    assert not list(mode_findings([report("before.jsonl", before), report("after.jsonl", after)]))


@pytest.mark.parametrize("counts", [{}, {"accepted": 9, "histogram": None}, {"accepted": None, "histogram": None}])
def test_tokens_and_steps_of_a_request(counts: dict[str, object]) -> None:
    request = replace(RequestReport((5, 3, 3), 11, completion_tokens=20), **counts)
    assert request.counted == (20, 11)
    assert from_report(EngineReport("x", request.form, (request,))).accept_length.value == 20 / 11
    stated = RequestReport(stated={"accept_length": 2.0}, prompt_tokens=5)
    assert stated.counted is None and report_sides(EngineReport("x", "average", (stated,)), 3)[0].empty


def from_log(length: float, **flags: object) -> EngineReport:
    windows = [RequestReport(stated={"accept_length": length + 0.02 * (i % 3 - 1)}, weight=2.0) for i in range(20)]
    return EngineReport(f"{length}.log", "window", tuple(windows), {"tp_size": 4, **flags})
