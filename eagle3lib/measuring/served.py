"""Served requests beside their prediction: the same tokens, the wiring that the engine's rules give, step for step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.acceptance import Acceptance, Histogram, from_predictions
from eagle3lib.measuring.prediction import BEYOND, Prediction, continued, predict
from eagle3lib.measuring.sample_states import sample_states
from eagle3lib.reading.engine_reports import EngineReport, RequestReport


@dataclass(frozen=True)
class Agreement:
    """Verify steps that accept exactly the predicted number of drafts, of all steps compared.

    ``ordered_steps``: those whose place in the request was known, so that each was compared with the prediction
    at its own start; of the others the request's histogram was compared. ``left_out``: served steps past the
    prediction. ``mismatches``: rows of ``compared_steps``.
    """

    equal: int
    steps: int
    ordered_steps: int
    left_out: int
    mismatches: tuple[dict[str, int], ...] = ()


@dataclass(frozen=True)
class ServedPrediction:
    """One engine report beside its prediction.

    ``predicted_histograms`` and ``served_histograms``: the requests whose last step could be predicted too.
    """

    source: str
    acceptance: Acceptance
    agreement: Agreement
    predicted_histograms: tuple[Histogram, ...] = field(repr=False)
    served_histograms: tuple[Histogram, ...] = field(repr=False)
    left_out: int = 0  #: requests of the report that took verify steps and give no usable token ids


def predict_reports(
    reports: Sequence[EngineReport], draft: Draft, wiring: Wiring, target: Target
) -> list[ServedPrediction]:
    """A prediction for every report whose setting is known and whose requests carry token ids and a histogram."""
    found = []
    for report in reports:
        requests, setting = report.with_tokens(len(target.embedding)), report.setting.resolved()
        if not requests or setting is None:
            continue
        predictions = [
            predict(draft, wiring, sample_states(sample, target, wiring.boundaries), setting, BEYOND)
            for sample in continued([request.sample for request in requests], target)
        ]
        whole = [(p, r) for p, r in zip(predictions, requests, strict=True) if p.steps.complete]
        found.append(
            ServedPrediction(
                report.source,
                from_predictions([each.steps for each in predictions], setting, f"predicted for {report.source}"),
                agreement(predictions, requests),
                tuple(prediction.steps.histogram(setting.num_steps) for prediction, _ in whole),
                tuple(request.histogram or () for _, request in whole),
                sum(request.verified for request in report.requests) - len(requests),
            )
        )
    return found


def compared_steps(predictions: Sequence[Prediction], requests: Sequence[RequestReport]) -> pd.DataFrame:
    """One row a served step whose order is known: ``request``, ``start``, drafts ``predicted`` there and ``served``.

    ``start`` counts from the prompt's last token; ``predicted`` is missing past what is known.
    """
    rows: list[tuple[int, int, Any, int]] = []
    for number, (prediction, request) in enumerate(zip(predictions, requests, strict=True)):
        start = 0
        for served in request.steps or ():
            predicted = prediction.runs[start] if start < len(prediction.runs) else None
            rows.append((number, start, predicted, served))
            start += served + 1
    table = pd.DataFrame(rows, columns=("request", "start", "predicted", "served"))
    return table.astype({"predicted": "Int64"})


def agreement(predictions: Sequence[Prediction], requests: Sequence[RequestReport]) -> Agreement:
    """Compare request by request: each step at its own start, or histograms where the order is not known."""
    table = compared_steps(predictions, requests)
    known = table.dropna(subset="predicted").astype(int)
    differing = known[known["predicted"] != known["served"]]
    equal, steps, left_out = len(known) - len(differing), len(known), len(table) - len(known)
    for prediction, request in zip(predictions, requests, strict=True):
        if request.steps is None:
            histogram, whole = request.histogram or (), prediction.steps
            compared = sum(histogram) - (not whole.complete)  # any of them may be the step past the prediction
            both = sum(map(min, histogram, whole.histogram(len(histogram) - 1)))
            equal, steps, left_out = equal + min(compared, both), steps + compared, left_out + (not whole.complete)
    return Agreement(equal, steps, len(known), left_out, tuple(differing.to_dict("records")))
