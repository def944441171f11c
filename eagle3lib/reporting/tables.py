"""One function a table: frozen results in, an HTML table out, every foreign string escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

from eagle3lib.reporting.privacy import mask

if TYPE_CHECKING:
    from IPython.display import HTML

    from eagle3lib.findings.finding import Finding
    from eagle3lib.findings.verdict import Diagnosis
    from eagle3lib.measuring.acceptance import Acceptance
    from eagle3lib.measuring.accuracy import Evaluation
    from eagle3lib.measuring.rates import Rate
    from eagle3lib.measuring.replay import StageDiff
    from eagle3lib.measuring.served import ServedPrediction
    from eagle3lib.measuring.streams import StreamMatch
    from eagle3lib.measuring.survey import Survey
    from eagle3lib.measuring.sweep import Summary
    from eagle3lib.reading.captures import Capture

#: A sign beside the word, so that severity does not rest on colour.
SIGNS = {"error": "✖ error", "warning": "▲ warning", "note": "· note"}
NOTHING = "–"
#: All or none of fewer cases than this: resampling them gives an interval of no width, which says nothing.
FEW = 30
#: JupyterLab sets tables flush right, which suits numbers alone.
LEFT = 'style="text-align:left;vertical-align:top"'


def table(rows: Iterable[Mapping[str, Any]], empty: str = "Nothing to show.") -> HTML:
    """``rows`` as an HTML table; the first row's keys are the columns."""
    from IPython.display import HTML

    frame = pd.DataFrame(list(rows))
    if frame.empty:
        return HTML(f"<p>{empty}</p>")
    with pd.option_context("display.max_colwidth", None):
        text = frame.map(_cell).to_html(index=False, escape=True, border=0)
    return HTML(mask(text.replace("<td>", f"<td {LEFT}>").replace("<th>", f"<th {LEFT}>")))


def findings(found: Sequence[Finding]) -> HTML:
    """What was found: errors first; one block a finding, for its sentences want room."""
    from eagle3lib.findings.finding import by_severity

    return _blocks(
        (
            (
                f"{SIGNS[finding.severity]}  {finding.kind}",
                {
                    "where": finding.subject,
                    "evidence": finding.evidence,
                    "consequence": finding.consequence,
                    "remedy": finding.remedy,
                },
            )
            for finding in by_severity(list(found))
        ),
        "No finding: nothing here contradicts anything.",
    )


def _blocks(entries: Iterable[tuple[str, Mapping[str, Any]]], empty: str) -> HTML:
    """A heading and its facts, one below the other."""
    from IPython.display import HTML

    parts = []
    for heading, facts in entries:
        rows = "".join(
            f"<tr><th {LEFT}>{escape(name)}</th><td {LEFT}>{escape(_cell(value))}</td></tr>"
            for name, value in facts.items()
        )
        parts.append(f"<p><b>{escape(heading)}</b></p><table>{rows}</table>")
    return HTML(mask("".join(parts)) or f"<p>{empty}</p>")


def diagnosis(found: Sequence[Diagnosis]) -> HTML:
    """What is wrong, most likely first."""
    from eagle3lib.findings.catalogue import is_symptom

    return _blocks(
        (
            (
                f"{place}. {entry.kind}, {entry.confidence:.0%} sure" + " (a symptom)" * is_symptom(entry.kind),
                {
                    "seen in": ", ".join(entry.notebooks),
                    "evidence": entry.evidence,
                    "consequence": entry.consequence,
                    "remedy": entry.remedy,
                },
            )
            for place, entry in enumerate(found, 1)
        ),
        "Nothing is wrong as far as was looked.",
    )


def text(words: str) -> HTML:
    """A sentence, or several lines as they are."""
    from IPython.display import HTML

    tag = "pre" if "\n" in words.strip() else "p"
    return HTML(f"<{tag}>{escape(mask(words))}</{tag}>")


def rate(value: Rate | None) -> str:
    """``61.0 % (610 / 1000; 57.2 to 64.9)``; the value alone where the source gives no counts."""
    if value is None or value.value is None:
        return NOTHING
    if value.numerator is None or value.denominator is None:
        return f"{value.value:.1%}"
    told = value.ci is not None and (value.ci[0] < value.ci[1] or value.denominator >= FEW)
    interval = f"; {value.ci[0]:.1%} to {value.ci[1]:.1%}" if told else ""
    return f"{value.value:.1%} ({value.numerator:g} / {value.denominator:g}{interval})"


def length(value: Rate | None) -> str:
    """``1.470 (1.393 to 1.551)``: tokens a verify step."""
    if value is None or value.value is None:
        return NOTHING
    return f"{value.value:.3f}" + ("" if value.ci is None else f" ({value.ci[0]:.3f} to {value.ci[1]:.3f})")


def samples(found: Survey, refused: Mapping[str, Any]) -> HTML:
    """What the samples are, what was decided about their states, and which files were refused."""
    rows = [
        {"": "samples", "value": len(found.lengths)},
        {"": "tokens", "value": sum(found.lengths)},
        {"": "of them generated by the target", "value": found.coverage.denominator},
        {"": "boundaries at hand", "value": f"{len(found.boundaries)}: {span(found.boundaries)}"},
        {"": "layout", "value": ", ".join(found.layouts)},
        {"": "last state", "value": found.last.summary()},
    ]
    return table(rows + [{"": f"refused: {name}", "value": str(error)} for name, error in refused.items()])


def depths(evaluation: Evaluation) -> HTML:
    """Accuracy per depth, and the accept length that each number of steps gives."""
    return table(
        {
            "depth": row.depth,
            "accuracy": rate(row.accuracy),
            "conditional": rate(row.conditional),
            "cumulative": rate(row.cumulative),
            "accept length with num_steps = depth": length(evaluation.accept_length(row.depth)),
        }
        for row in evaluation.depths()
    )


def sources(found: Sequence[Acceptance]) -> HTML:
    """Every account of acceptance, each under its own definition."""
    return table(
        (
            {
                "source": source.source,
                "kind": source.kind,
                "what it counts": source.definition,
                "verify steps": source.verify_steps,
                "accept length, bonus in": length(source.accept_length),
                "completion tokens / steps": length(source.completion_length),
                "histogram": source.histogram,
            }
            for source in found
        ),
        "No source: neither samples, nor a training report, nor an engine report.",
    )


def agreements(predictions: Sequence[ServedPrediction]) -> HTML:
    """Verify steps that accepted exactly the predicted number of drafts."""
    return table(
        (
            {
                "served": each.source,
                "steps as predicted": f"{each.agreement.equal} of {each.agreement.steps}",
                "of them compared in order": each.agreement.ordered_steps,
                "by the request's histogram": each.agreement.steps - each.agreement.ordered_steps,
                "left out": each.agreement.left_out,
            }
            for each in predictions
        ),
        "Not compared: that needs an engine report that holds the token ids of its requests.",
    )


def captures(found: Sequence[Capture]) -> HTML:
    """What was captured, request by request."""
    return table(
        {
            "request": capture.request,
            "rank": capture.rank,
            "rows": len(capture.positions),
            "width into fc": capture.aux_hidden_states.shape[-1],
            "stages": ", ".join(capture.stages),
        }
        for capture in found
    )


def streams(matches: Sequence[StreamMatch], why: str) -> HTML:
    """Which boundary each stream is, and which it should be."""
    rows = [
        {
            "stream": match.stream,
            "is boundary": "none" if match.boundary is None else match.boundary,
            "trained on": match.expected_boundary,
            "": "" if match.expected_boundary in (None, match.boundary) else "✖",
            "cosine": match.cosine,
            "relative error": match.relative_error,
            "row shift": match.shift,
            "runner-up": f"{match.runner_up} ({match.runner_up_cosine:.3f})",
            "trained on, says": why,
        }
        for match in matches
    ]
    return table(rows, escape(f"Not compared: {why}."))


def stages(diffs: Sequence[StageDiff], reason: str = "") -> HTML:
    """Ours against the engine's, in execution order; ``reason``: why there is none."""
    return table(
        (
            {
                "stage": diff.stage,
                "": "✔" if diff.ok else "✖",
                "relative error": f"{diff.relative:.1e}",
                "tolerance": f"{diff.tolerance:.0e}",
                "largest difference": f"{diff.max_abs:.1e}",
                "cosine": f"{diff.cosine:.6f}",
            }
            for diff in diffs
        ),
        escape(reason) or "The capture holds what entered fc alone: nothing inside the draft to compare.",
    )


def sweep(summaries: Sequence[Summary]) -> HTML:
    """Every setting at every load."""
    return table(
        {
            "steps / topk / tokens": "no speculation" if not any(s.setting) else "/".join(map(str, s.setting)),
            "in flight": s.concurrency,
            "tokens/s": s.tokens_per_second,
            "95 %": None if s.tokens_per_second_ci is None else span(s.tokens_per_second_ci),
            "accept length": s.accept_length,
            "speed-up": s.speedup,
            "95 % ": None if s.speedup_ci is None else span(s.speedup_ci),
            "repeats": s.repeats,
            "state": s.status + (f": {s.reason}" if s.reason else ""),
        }
        for s in summaries
    )


def recommendation(by_load: Mapping[str, Any], on_cpu: bool) -> HTML:
    """The setting to serve at each load; where nothing was measured beside no speculation, that is said."""
    words = "; ".join(
        f"{load} in flight: {'/'.join(map(str, best.values())) if isinstance(best, dict) else best or 'not measured'}"
        for load, best in by_load.items()
    )
    remark = (
        " Measured on a CPU, where verifying several tokens costs as much as decoding them one by one: "
        "this says nothing about a GPU."
    )
    return text(words + "." + remark * on_cpu)


def span(values: Sequence[float]) -> str:
    """First to last."""
    return f"{_cell(values[0])} to {_cell(values[-1])}"


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item) for item in value) or NOTHING
    return str(value)
