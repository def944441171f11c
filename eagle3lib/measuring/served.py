"""Served requests predicted: the same tokens, the wiring that the engine's rules give, step for step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target_states import TargetTensors
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.acceptance import Acceptance, Histogram, steps_of
from eagle3lib.measuring.forecast import BEYOND, Agreement, agreement, continued, predicted, setting_forecast
from eagle3lib.measuring.materials import material
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


def forecast_served(
    reports: Sequence[EngineReport], path: str | Path, draft: Draft, wiring: Wiring, target: str | Path,
    tensors: TargetTensors, cache: str | Path, setting: Setting,
) -> list[ServedForecast]:  # fmt: skip
    """A prediction for every report whose requests carry their token ids and a histogram.

    ``path`` is where the reports were read from. Other reports are left out: nothing says what was served.
    """
    found = []
    for report in reports:
        pairs = served_requests(report, Path(path))
        if not pairs:
            continue
        samples = continued([sample for _, sample in pairs], target)
        forecasts = [
            setting_forecast(
                draft, wiring, material(sample, target, tensors, cache, wiring.boundaries), setting, BEYOND
            )
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
            )
        )
    return found


def served_requests(report: EngineReport, path: Path) -> list[tuple[RequestReport, Sample]]:
    """Each request with its tokens; empty where the report's file does not hold them, or holds other ones.

    ``path``: that file, or the folder it was read from.
    """
    file = path / report.source if path.is_dir() else path
    if file.suffix != ".jsonl" or report.form != "histogram":
        return []
    try:
        samples = list(read_samples(file))
    except InputError:  # no line has token ids: ordinary meta_info
        return []
    if len(samples) != len(report.requests):
        return []
    return [pair for pair in zip(report.requests, samples, strict=True) if steps_of(pair[0].histogram or ())]
