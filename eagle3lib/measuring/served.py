"""Served requests predicted: the same tokens, the wiring that the engine's rules give, step for step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.acceptance import Acceptance, Histogram, steps_of
from eagle3lib.measuring.forecast import BEYOND, Agreement, agreement, continued, predicted, setting_forecast
from eagle3lib.measuring.sample_states import sample_states
from eagle3lib.reading.engine_reports import EngineReport, RequestReport
from eagle3lib.reading.points import Setting
from eagle3lib.reading.samples import Sample, read_samples


@dataclass(frozen=True)
class ServedForecast:
    """One engine report beside its prediction.

    ``predicted_histograms`` and ``served_histograms``: the requests whose last step could be predicted too.
    """

    source: str
    acceptance: Acceptance
    agreement: Agreement
    predicted_histograms: tuple[Histogram, ...]
    served_histograms: tuple[Histogram, ...]
    left_out: int = 0  #: requests of the report that took verify steps and give no usable token ids


def forecast_served(
    reports: Sequence[EngineReport], path: str | Path, draft: Draft, wiring: Wiring, target: Target,
) -> list[ServedForecast]:  # fmt: skip
    """A prediction for every report whose requests carry their token ids and a histogram.

    ``path`` is where the reports were read from. Other reports are left out, and those whose setting is not known.
    """
    found = []
    for report in reports:
        pairs, setting = served_requests(report, Path(path), len(target.embedding)), known_setting(report)
        if not pairs or setting is None:
            continue
        samples = continued([sample for _, sample in pairs], target)
        forecasts = [
            setting_forecast(draft, wiring, sample_states(sample, target, wiring.boundaries), setting, BEYOND)
            for sample in samples
        ]
        histograms = [request.histogram or () for request, _ in pairs]
        steps = [request.steps for request, _ in pairs]
        whole = [i for i, each in enumerate(forecasts) if each.walk.complete]
        found.append(
            ServedForecast(
                report.source,
                predicted([each.walk for each in forecasts], setting, f"predicted for {report.source}"),
                agreement(forecasts, list(zip(steps, histograms, strict=True))),
                tuple(forecasts[i].walk.histogram(setting[0]) for i in whole),
                tuple(histograms[i] for i in whole),
                sum(steps_of(request.histogram or ()) > 0 for request in report.requests) - len(pairs),
            )
        )
    return found


def known_setting(report: EngineReport) -> Setting | None:
    """The whole setting that a report was served under; ``None`` where a part of it is not known."""
    steps, topk, tokens = report.setting
    topk = topk or 1
    tokens = steps + 1 if steps and topk == 1 else tokens
    return (steps, topk, tokens) if steps and tokens else None


def served_requests(report: EngineReport, path: Path, vocab: int | None = None) -> list[tuple[RequestReport, Sample]]:
    """Each request with its tokens; empty where the report's file does not hold them, or holds other ones.

    ``path``: that file, or the folder it was read from. ``vocab``: requests with token ids beyond it are left out.
    """
    file = path / report.source if path.is_dir() else path
    if file.suffix != ".jsonl" or report.form != "histogram":
        return []
    try:
        samples = {sample.name: sample for sample in read_samples(file, vocab=vocab)}
    except InputError:  # no line has token ids: ordinary meta_info
        return []
    with file.open(encoding="utf-8", errors="replace") as lines:
        names = [f"{file.name}:{number}" for number, line in enumerate(lines, 1) if line.strip()]
    if len(names) != len(report.requests):  # several requests a line
        return []
    return [
        (request, samples[name])
        for request, name in zip(report.requests, names, strict=True)
        if name in samples and steps_of(request.histogram or ())
    ]
