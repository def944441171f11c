"""What people reported about acceptance numbers, context, sampling and data, and the words they should have got."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3lib.findings import acceptance_rules as rules
from eagle3lib.findings.acceptance_rules import mode_findings
from eagle3lib.findings.breakdown_rules import Limit, length_findings, report_sides
from eagle3lib.findings.config_rules import inspect
from eagle3lib.findings.finding import Finding
from eagle3lib.measuring.acceptance import from_report, from_training
from eagle3lib.reading.engine_reports import parse_engine_report
from eagle3lib.reading.training_reports import checkpoints, parse_training_report
from tests.static_pairs import Pair

#: report -> (text, num_steps, num_draft_tokens, accept length or None, kinds, words in the findings)
ENGINE: dict[str, tuple[Any, ...]] = {
    "sglang#11572 a rate above 1": (
        "Decode batch, #running-req: 1, accept len: 5.24, accept rate: 1.31, gen throughput (token/s): 90",
        3, 8, 5.24, {"metric.impossible", "metric.definition"}, "accept rate 1.31",
    ),
    "sglang#13212 draft tokens are not steps + 1": (
        "Decode batch, #running-req: 1, accept len: 3.00, accept rate: 0.375, cuda graph: True",
        3, 8, 3.0, {"metric.definition"}, "accept length 3 / 8 draft tokens",
    ),
    "sglang#3152 only verify steps": ('{"completion_tokens": 120, "spec_verify_ct": 40}', 3, 4, 3.0, set(), ""),
    "sglang#3152 no verify steps": (
        '{"completion_tokens": 120, "spec_verify_ct": 0}', 3, 4, None, {"metric.unmeasured"}, "no verify step",
    ),
    "vllm#9565 a draft right after a miss": ('[[1, 0, 1, 0]]', 1, 2, 1.5, set(), ""),
    "EAGLE#132 without the target's token": ('{"accept_length": 2.3, "bonus": false}', 5, 6, 3.3, set(), ""),
    "miles#2028 zeros averaged": ('{"accept_length": 0.0}', 3, 4, None, {"metric.unmeasured"}, "zeros"),
    "miles#2028 as the engine logs it": ("accept len: 1.77, cuda graph: True", 3, 4, 1.77, set(), ""),
    "tokenspeed#1443 the root as a draft": (
        '{"spec_verify_ct": 100, "spec_num_correct_drafts": 90, "spec_num_proposed_drafts": 400}',
        3, 4, 1.9, {"metric.definition"}, "root included",
    ),
    "tokenspeed#526 the default layers": (
        "accept len: 1.00, accept rate: 0.00, x", 3, 4, 1.0, {"acceptance.floor"}, "1.000",
    ),
    "tokenspeed#526 after the fix": ("accept len: 2.39, accept rate: 0.47, x", 3, 4, 2.39, set(), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINE)
def test_what_an_engine_says(name: str) -> None:
    text, num_steps, tokens, length, kinds, words = ENGINE[name]
    report = replace(parse_engine_report(text, "x"), setting=(num_steps, None, tokens))
    found = from_report(report)
    assert (found.accept_length.value if found.accept_length else None) == pytest.approx(length)
    findings = list(rules.report_findings(report))
    findings += rules.floor_findings(found)
    assert {finding.kind for finding in findings} == kinds
    assert words in said(findings)


def said(findings: list[Finding]) -> str:
    return " ".join(f"{finding.evidence} {finding.consequence} {finding.remedy}" for finding in findings)


def test_a_mean_one_lower_than_the_counts_lacks_the_bonus_token() -> None:
    texts = {"bench": '{"accept_length": 2.3}', "server": '{"spec_verify_ct": 100, "spec_num_correct_drafts": 230}'}
    served = [from_report(parse_engine_report(text, name)) for name, text in texts.items()]
    [finding] = rules.stated_findings(served)
    assert finding.kind == "metric.definition" and "bonus token" in finding.consequence


def test_acceptance_that_ends_with_the_drafts_window() -> None:
    """sglang#6783: 2.9 below 2k tokens, about 1.1 above, max_position 2048."""
    lines = []
    for i, prompt in enumerate([300, 800, 1200, 1500, 2300, 3000, 3500, 4000]):
        drafts = (190 if prompt < 2048 else 10) + i % 2
        meta = {"spec_verify_ct": 100, "spec_num_correct_drafts": drafts, "completion_tokens": 100 + drafts}
        lines.append(json.dumps(meta | {"prompt_tokens": prompt}))
    report = parse_engine_report("\n".join(lines), "server")
    limit = Limit(2048, "context.length", "the draft's max_position_embeddings")
    [finding] = length_findings("server", *report_sides(report, 2048), limit)
    assert finding.kind == "context.length"
    assert "2.90 up to 2048 tokens" in finding.evidence and "1.10 beyond" in finding.evidence


LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 {} --context-length 32768"
#: report -> (the launch, severity)
CONTEXT = {
    "sglang#3574 started with the override": (LONGER, "warning"),
    "slime#277 a window shorter than the served context": ("{} --context-length 32768", "error"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTEXT)
def test_what_the_files_say_about_context(name: str, tmp_path: Path) -> None:
    launch, severity = CONTEXT[name]
    pair = Pair()
    pair.target["max_position_embeddings"] = 131072
    draft, target = pair.write(tmp_path)
    findings = inspect(draft, target, launch.format(pair.launch), pair.engine, 4096).findings
    assert ("context.length", severity) in [(finding.kind, finding.severity) for finding in findings]


def test_a_sampled_run_beside_a_greedy_reference() -> None:
    """vllm#16899."""
    [finding] = rules.sampling_findings(1.0)
    assert finding.kind == "sampling.temperature" and "falls as temperature rises" in finding.consequence


def test_two_modes_of_one_engine_apart() -> None:
    """sglang#16274: 2.34 to 2.37 with TP4, 1.48 to 1.49 with DP attention besides."""
    runs = {"tp4.log": ((2.34, 2.37, 2.35), "False"), "dp4.log": ((1.48, 1.49, 1.48), "True")}
    reports = []
    for name, (lengths, dp) in runs.items():
        head = f"server_args={{'tp_size': 4, 'enable_dp_attention': {dp}}}\n"
        windows = [f"Decode batch, #running-req: 4, accept len: {length}, x" for length in lengths * 4]
        reports.append(parse_engine_report(head + "\n".join(windows), name))
    [finding] = mode_findings(reports)
    assert finding.kind == "engine.mode" and "37% less in dp4.log" in finding.evidence


def test_acceptance_peaks_before_the_loss_ends() -> None:
    """DeepSpec#84: the fifth checkpoint has the lowest loss and not the best acceptance."""
    course = zip((3.28, 3.34, 3.34, 3.24, 3.18), (2.69, 2.3, 2.0, 1.7, 1.5), strict=True)
    text = json.dumps(
        [{"epoch": i, "accept_length": length, "loss": loss} for i, (length, loss) in enumerate(course, 1)]
    )
    [finding] = rules.checkpoint_findings(checkpoints(text))
    assert finding.kind == "quality.overtrained" and "by acceptance" in finding.remedy
    rising = json.dumps([{"epoch": i, "accept_length": 3 + i / 10, "loss": 3 - i / 2} for i in range(5)])
    assert not list(rules.checkpoint_findings(checkpoints(rising)))


def test_training_accuracy_is_no_accept_length() -> None:
    """SpecForge#128: 0.83 on GSM8K in training, accept length 1.94 served, after 50K samples."""
    text = '{"trainer": "specforge", "metric": "acc", "values": [0.83], "training_samples": 50000}'
    [report] = parse_training_report(text, "x")
    assert from_training(report, 3).accept_length is None
    [finding] = rules.training_findings(report)
    assert finding.kind == "quality.undertrained" and "50,000" in finding.evidence
