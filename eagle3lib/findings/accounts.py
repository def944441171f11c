"""Notebook 03: every account of acceptance in one list, and what is found in each of them and between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle3lib.findings import acceptance_rules as rules
from eagle3lib.findings.breakdown import Breakdown
from eagle3lib.findings.breakdown_rules import ceiling_findings, requested_tokens
from eagle3lib.findings.finding import Finding
from eagle3lib.findings.mode_rules import mode_findings
from eagle3lib.measuring.acceptance import Acceptance, from_report, from_training
from eagle3lib.measuring.served import ServedPrediction
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.training_reports import CheckpointMetrics, TrainingReport


@dataclass(frozen=True)
class Accounts:
    """``sources``: predicted for the samples, predicted for what was served, by training, served.

    ``reports``: the engine reports that measured something; ``served``: those as acceptance, in the same order.
    """

    sources: tuple[Acceptance, ...]
    reports: tuple[EngineReport, ...]
    served: tuple[Acceptance, ...]
    findings: tuple[Finding, ...]


def all_accounts(
    samples: Breakdown, predictions: Sequence[ServedPrediction], reports: Sequence[EngineReport],
    training: Sequence[TrainingReport], checkpoints: Sequence[CheckpointMetrics], *,
    num_steps: int | None, launch: str, num_draft_tokens: int, temperature: float,
) -> Accounts:  # fmt: skip
    """``num_steps``: of the setting in force, ``None`` where unknown; the last three are the notebook's parameters."""
    usable = [report for report in reports if report.form != "unmeasured"]
    served = [from_report(report) for report in usable]
    trained = [from_training(report, num_steps) for report in training]
    # Where each is predicted for its own tokens, none is held against the samples' greedy ones.
    beside_greedy = served and samples.sources and len(predictions) != len(served)

    def findings() -> Iterator[Finding]:
        for report in reports:
            yield from rules.report_findings(report, others=bool(usable))
        for report in training:
            yield from rules.training_findings(report)
        yield from rules.checkpoint_findings(checkpoints)
        yield from rules.stated_findings(served)
        yield from mode_findings(usable)
        for report, source in zip(usable, served, strict=True):
            yield from rules.floor_findings(source, report.setting.num_steps)
            wanted = requested_tokens(report, launch, num_draft_tokens)
            yield from ceiling_findings(source, report.setting, wanted)
        yield from rules.sampling_findings(temperature if beside_greedy else 0)

    sources = (*samples.sources, *(each.acceptance for each in predictions), *trained, *served)
    return Accounts(sources, tuple(usable), tuple(served), tuple(findings()))
