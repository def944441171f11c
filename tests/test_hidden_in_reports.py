"""Faults that a report shows only indirectly, each beside a healthy twin: a fall at an unknown length, stuck output."""

from __future__ import annotations

import random

import pandas as pd
import pytest
import torch

from eagle3lib.findings.acceptance_rules import degenerate_findings
from eagle3lib.findings.breakdown_rules import sudden_fall
from eagle3lib.reading.engine_reports import EngineReport, RequestReport
from eagle3lib.reading.samples import Sample

LENGTHS = [2_000, 3_000, 4_000, 6_000, 8_000, 12_000, 16_000, 20_000]


def by_length(chance: dict[int, float], seed: int, requests: int = 4, spread: float = 0.05) -> EngineReport:
    """Requests of eight lengths, 120 verify steps of three drafts each; each request has its own chance."""
    draw = random.Random(seed)
    found = []
    for tokens in LENGTHS:
        for _ in range(requests):
            own = min(max(draw.gauss(chance[tokens], spread), 0), 1)
            steps = [next((n for n in range(3) if draw.random() >= own), 3) for _ in range(120)]
            histogram = tuple(steps.count(n) for n in range(4))
            given = sum(steps) + len(steps)
            found.append(RequestReport(histogram, completion_tokens=given, prompt_tokens=tokens))
    return EngineReport("server", "histogram", tuple(found))


@pytest.mark.parametrize("seed", range(6))
def test_a_fall_at_a_length_that_no_file_gives_is_found(seed: int) -> None:
    falling = {tokens: 0.6 if tokens <= 4_000 else 0.1 for tokens in LENGTHS}
    [finding] = sudden_fall(by_length(falling, seed), pd.DataFrame())
    assert (finding.kind, finding.severity) == ("context.length", "warning") and "up to 6000 tokens" in finding.evidence


@pytest.mark.parametrize("seed", range(12))
def test_flat_and_gently_falling_lengths_are_silent(seed: int) -> None:
    for last in (0.55, 0.45):
        chance = {tokens: 0.55 + (last - 0.55) * n / 7 for n, tokens in enumerate(LENGTHS)}
        assert not list(sudden_fall(by_length(chance, seed, spread=0.1), pd.DataFrame()))
    assert not list(sudden_fall(by_length(dict.fromkeys(LENGTHS, 0.0), seed), pd.DataFrame()))


def reply(*tokens: int) -> RequestReport:
    ids = torch.tensor([1, 2, 3, *tokens])
    sample = Sample("s", ids, torch.arange(len(ids)) >= 3, 3)
    return RequestReport((0, 0, 0, 12), sample=sample)


@pytest.mark.parametrize(
    ("replies", "severity"),
    [
        ([reply(*[7] * 48)] * 3, "error"),
        ([reply(*range(10, 40), *[7] * 30)] * 2, "error"),
        ([reply(*[7] * 48), reply(*range(10, 60))], "warning"),
        ([reply(*[7] * 48)], "warning"),
        ([reply(*range(10, 60))] * 3, None),
        ([reply(*range(10, 60), *[7] * 20)] * 3, None),  # a ruler, a table's last row
        ([reply(*[7] * 10)] * 3, None),
    ],
)
def test_a_reply_that_repeats_one_token_to_its_end(replies: list[RequestReport], severity: str | None) -> None:
    found = degenerate_findings(EngineReport("server", "histogram", tuple(replies)))
    expected = [("output.degenerate", severity)] if severity else []
    assert [(finding.kind, finding.severity) for finding in found] == expected
