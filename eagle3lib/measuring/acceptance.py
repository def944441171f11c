"""The one arithmetic of acceptance: counts of verify steps by accepted drafts, added, divided once.

With ``h[j]`` the verify steps that accepted exactly j drafts and ``N`` their sum::

    marginal     S_j = sum(h[j:]) / N          (vLLM's rate per position)
    conditional  a_j = sum(h[j:]) / sum(h[j - 1:])
    accept length    = 1 + sum(j * h[j]) / N   (the bonus token counts, as in SGLang, vLLM and papers)
    accept rate      = sum(j * h[j]) / (N * (num_draft_tokens - 1))   (SGLang; of a tree, its budget)

Worked: ``h = [5, 3, 2]`` is N = 10, S = (0.5, 0.2), a = (0.5, 0.4), accept length 1.7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any, Literal

from eagle3lib.errors import InputError
from eagle3lib.measuring.prediction import VerifySteps
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.reading.engine_reports import EngineReport, RequestReport
from eagle3lib.reading.setting import Setting
from eagle3lib.reading.training_reports import TrainingReport

Kind = Literal["offline", "training", "engine"]
Histogram = Sequence[int]


@dataclass(frozen=True)
class Acceptance:
    """What one source determines; ``None`` for the rest. Positions start at 1."""

    source: str
    kind: Kind
    definition: str
    verify_steps: int | None = None
    histogram: tuple[int, ...] | None = None
    accept_length: Rate | None = None
    #: ``None`` at positions never reached, or that the source does not give.
    marginal: tuple[Rate | None, ...] | None = None
    conditional: tuple[Rate | None, ...] | None = None
    accuracy: tuple[Rate, ...] | None = None  #: right with the true tokens fed, whatever came before
    accept_rate: Rate | None = None
    #: Completion tokens / verify steps (SGLang's ``spec_accept_length``): with the token sampled at
    #: prefill, and without what a stop or the length limit cut.
    completion_length: Rate | None = None


def steps_of(histogram: Histogram) -> int:
    """Verify steps."""
    return sum(histogram)


def accepted_of(histogram: Histogram) -> int:
    """Accepted drafts, bonus tokens not among them."""
    return sum(accepted * steps for accepted, steps in enumerate(histogram))


def reached(histogram: Histogram, positions: int) -> tuple[int, ...]:
    """``[j]`` = steps that accepted at least j drafts, for j = 0..positions."""
    return tuple(sum(histogram[j:]) for j in range(positions + 1))


def total(histograms: Sequence[Histogram]) -> tuple[int, ...]:
    """Histograms added; engines leave trailing zeros away."""
    return tuple(sum(column) for column in zip_longest(*histograms, fillvalue=0))


def from_histograms(
    source: str,
    kind: Kind,
    definition: str,
    histograms: Sequence[Histogram],
    *,
    num_steps: int | None = None,
    num_draft_tokens: int | None = None,
) -> Acceptance:
    """Rates from one histogram per request.

    Args:
        num_steps: positions to report even where none was ever accepted.
        num_draft_tokens: of the verify step (root included); without it there is no accept rate.

    Raises:
        InputError: no verify step at all.
    """
    requests = [histogram for histogram in histograms if steps_of(histogram)]
    if not requests:
        raise InputError(source, "no verify step", "at least one", "zero and absent mean not measured.")
    whole = total(requests)
    positions = max(num_steps or 0, *(accepted for accepted, steps in enumerate(whole) if steps))
    depths = list(zip(*(reached(histogram, positions) for histogram in requests), strict=True))
    accepted = [accepted_of(histogram) for histogram in requests]
    return Acceptance(
        source,
        kind,
        definition,
        histogram=whole,
        marginal=tuple(rate(right, depths[0]) for right in depths[1:]),
        conditional=tuple(rate(right, before) if any(before) else None for before, right in pairwise(depths)),
        **_pooled(accepted, list(depths[0]), num_draft_tokens),
    )


def from_predictions(steps: Sequence[VerifySteps], setting: Setting, source: str = "offline prediction") -> Acceptance:
    """Predicted verify steps, one entry a request, as one source to be set beside an engine's."""
    definition = "walk of the verify steps that greedy serving takes; bonus token included"
    return from_setting(source, definition, [each.histogram(setting.num_steps) for each in steps], setting)


def from_setting(source: str, definition: str, histograms: Sequence[Histogram], setting: Setting) -> Acceptance:
    """Offline histograms under ``setting``; a chain's proposed drafts are its steps."""
    num_steps, topk, num_draft_tokens = setting
    budget = num_steps + 1 if topk == 1 else num_draft_tokens
    return from_histograms(source, "offline", definition, histograms, num_steps=num_steps, num_draft_tokens=budget)


def from_report(report: EngineReport) -> Acceptance:
    """Rates from an engine's own account, as far as it goes; ``plausibility`` checks them."""
    requests, (num_steps, _, num_draft_tokens) = report.measured, report.setting
    named = {"source": report.source, "kind": "engine", "definition": report.definition}
    match report.form:
        case "histogram":
            histograms = [request.histogram or () for request in requests]
            found = from_histograms(
                **named, histograms=histograms, num_steps=num_steps, num_draft_tokens=num_draft_tokens
            )
        case "counters" | "completion":
            tokens, steps = zip(*(request.counted or (0, 0) for request in requests), strict=True)
            if report.form == "completion":
                found = Acceptance(**named, verify_steps=sum(steps), accept_length=rate(tokens, steps))
            else:
                accepted = [given - count for given, count in zip(tokens, steps, strict=True)]
                found = Acceptance(**named, **_pooled(accepted, steps, num_draft_tokens))
        case "window" | "average":
            found = Acceptance(**named, **_averages(requests))
        case "alpha":
            found = _from_alpha(requests, **named)
        case _:
            return Acceptance(**named)
    budget = found.accept_rate or _stated_budget_rate(requests)
    return replace(found, completion_length=_completion_length(requests), accept_rate=budget)


def from_training(report: TrainingReport, num_steps: int | None = None) -> Acceptance:
    """A trainer's accuracies read as acceptance: values whose counts it does not give."""

    def plain(values: Sequence[float | None] | None) -> tuple[Rate | None, ...] | None:
        return None if values is None else tuple(None if value is None else _value(value) for value in values)

    length = report.accept_length(num_steps)
    return Acceptance(
        report.source,
        "training",
        f"{report.trainer} {report.metric}: {report.definition}",
        accept_length=None if length is None else _value(length),
        marginal=plain(report.marginal),
        conditional=plain(report.conditional),
        accuracy=tuple(map(_value, report.values)) if report.meaning == "accuracy" else None,
    )


def _pooled(accepted: Sequence[int], steps: Sequence[int], num_draft_tokens: int | None) -> dict[str, Any]:
    tokens = [right + count for right, count in zip(accepted, steps, strict=True)]  # bonus tokens included
    budget = None
    if num_draft_tokens is not None and num_draft_tokens > 1:
        budget = rate(accepted, [count * (num_draft_tokens - 1) for count in steps])
    return {"verify_steps": sum(steps), "accept_length": rate(tokens, steps), "accept_rate": budget}


def _from_alpha(requests: Sequence[RequestReport], **named: Any) -> Acceptance:
    """EAGLE's alpha: right of tried at each position, so conditional; the products are marginal."""
    columns = list(zip_longest(*(request.tried or () for request in requests), fillvalue=(0, 0)))
    conditional = [rate([right for right, _ in column], [tried for _, tried in column]) for column in columns]
    values = [step.value or 0.0 for step in conditional]
    marginal = [math.prod(values[: depth + 1]) for depth in range(len(values))]
    return Acceptance(
        **named,
        accept_length=_value(1 + sum(marginal)),
        marginal=tuple(_value(value) for value in marginal),
        conditional=tuple(step if step.denominator else None for step in conditional),
    )


def _averages(requests: Sequence[RequestReport]) -> dict[str, Rate]:
    """Means as stated, weighted where the source gives weights; no interval: windows are no requests."""
    found = {}
    for name in ("accept_length", "accept_rate"):
        pairs = [(request.stated[name], request.weight) for request in requests if name in request.stated]
        weights = sum(weight for _, weight in pairs)
        if weights:
            whole = sum(value * weight for value, weight in pairs)
            found[name] = Rate(whole / weights, whole, weights, None)
    return found


def _completion_length(requests: Sequence[RequestReport]) -> Rate | None:
    steps = [request.verify_steps or steps_of(request.histogram or ()) for request in requests]
    return _known([request.completion_tokens for request in requests], steps)


def _stated_budget_rate(requests: Sequence[RequestReport]) -> Rate | None:
    accepted = [accepted_of(request.histogram) if request.histogram else request.accepted for request in requests]
    return _known(accepted, [request.proposed for request in requests])


def _known(numerators: Sequence[int | None], denominators: Sequence[int | None]) -> Rate | None:
    pairs = [(top, bottom) for top, bottom in zip(numerators, denominators, strict=True) if top is not None and bottom]
    return rate(*zip(*pairs, strict=True)) if pairs else None


def _value(value: float) -> Rate:
    """A value whose counts the source does not give."""
    return Rate(value, None, None, None)
