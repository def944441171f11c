"""Tables and sentences of the notebooks: rows in, a styled pandas table out.

``table(...).data`` is the DataFrame itself, to sort, filter and export. Secrets and home folders are masked in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd
from pandas.io.formats.style import Styler

from eagle3lib.findings.catalogue import about
from eagle3lib.findings.finding import by_severity
from eagle3lib.measuring.rates import Rate
from eagle3lib.reporting.privacy import mask

if TYPE_CHECKING:
    from IPython.display import Pretty

    from eagle3lib.findings.finding import Finding
    from eagle3lib.findings.verdict import Diagnosis
    from eagle3lib.measuring.acceptance import Acceptance
    from eagle3lib.measuring.accuracy import Evaluation
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


def named(found: object, *names: str) -> dict[str, Any]:
    """The attributes of these names: a row of a table, or a part of a record."""
    return {name: getattr(found, name) for name in names}


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a DataFrame. A rate becomes its value and, in a column beside it, its counts and 95 % interval."""
    rows = list(rows)
    rates = {name for row in rows for name, value in row.items() if isinstance(value, Rate)}
    flat: list[dict[str, Any]] = []
    for row in rows:
        flat.append({})
        for name, value in row.items():
            flat[-1][name] = value.value if isinstance(value, Rate) else value
            if name in rates:
                flat[-1][f"{name}: counts, 95 %"] = counts(value) if isinstance(value, Rate) else ""
    return pd.DataFrame(mask(flat), dtype=object).infer_objects()


def table(rows: Iterable[Mapping[str, Any]], empty: str = "Nothing to show.") -> Styler:
    """``frame(rows)`` as a notebook shows it, every string escaped; without rows the sentence ``empty``."""
    found = frame(rows)
    style = Styler(found, cell_ids=False).hide(axis="index").format(lambda value: escape(cell(value)))
    left = {"selector": "th, td", "props": "text-align: left; vertical-align: top; overflow-wrap: break-word"}
    style = style.format_index(escape="html", axis="columns").set_table_styles([left])
    return style if len(found) else style.set_caption(escape(empty))


def facts(values: Mapping[str, Any]) -> Styler:
    """A name and its value a row."""
    return table({"": name, "value": value} for name, value in values.items())


def text(words: str) -> Pretty:
    """A sentence or several, shown as they are."""
    from IPython.display import Pretty

    return Pretty(mask(words))


def cell(value: Any) -> str:
    """One cell in words."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell, value)) or NOTHING
    return str(value)


def counts(rate: Rate) -> str:
    """``610 / 1000; 0.572 to 0.649``; nothing where the source gives no counts."""
    if rate.value is None or rate.numerator is None or rate.denominator is None:
        return ""
    shown = rate.ci is not None and (rate.ci[0] < rate.ci[1] or rate.denominator >= FEW)
    return f"{rate.numerator:g} / {rate.denominator:g}" + (f"; {span(rate.ci)}" if shown else "")


def length(value: Rate | None) -> str:
    """``1.470 (1.393 to 1.551)``: tokens a verify step."""
    if value is None or value.value is None:
        return NOTHING
    return f"{value.value:.3f}" + ("" if value.ci is None else f" ({value.ci[0]:.3f} to {value.ci[1]:.3f})")


def span(values: Sequence[float]) -> str:
    """First to last."""
    return f"{cell(values[0])} to {cell(values[-1])}"


def findings(found: Sequence[Finding]) -> Styler:
    """What was found, errors first."""
    names = ("severity", "kind", "subject", "evidence", "consequence", "remedy")
    rows = [named(finding, *names) | {"severity": SIGNS[finding.severity]} for finding in by_severity(list(found))]
    return table(rows, "No finding: nothing here contradicts anything.")


def diagnosis(found: Sequence[Diagnosis]) -> Styler:
    """What is wrong, most likely first."""
    names = ("kind", "confidence", "notebooks", "evidence", "consequence", "remedy")
    rows = [named(each, *names) | {"role": about(each.kind).role} for each in found]
    return table(rows, "Nothing is wrong as far as the notebooks looked.")


def samples(found: Survey, refused: Mapping[str, Any]) -> Styler:
    """What the samples are, what was decided about their states, and which files were refused."""
    return facts({
        "samples": len(found.lengths),
        "tokens": sum(found.lengths),
        "of them generated by the target": found.coverage.denominator,
        "boundaries at hand": f"{len(found.boundaries)}: {span(found.boundaries)}",
        "layout": ", ".join(found.layouts),
        "last state": found.last.summary(),
        **{f"refused: {name}": str(error) for name, error in refused.items()},
    })  # fmt: skip


def depths(evaluation: Evaluation) -> Styler:
    """Accuracy per depth, and the accept length that num_steps = depth gives."""
    return table(
        named(row, "depth", "accuracy", "conditional", "cumulative")
        | {"accept_length": evaluation.accept_length(row.depth)}
        for row in evaluation.depths()
    )


def sources(found: Sequence[Acceptance]) -> Styler:
    """Every source of acceptance, each under its own definition."""
    names = ("source", "kind", "definition", "verify_steps", "accept_length", "completion_length", "histogram")
    rows = [named(source, *names) for source in found]
    return table(rows, "No source: neither samples, nor a training report, nor an engine report.")


def agreements(predictions: Sequence[ServedPrediction]) -> Styler:
    """Verify steps that accepted exactly the predicted number of drafts (``equal``), of all compared."""
    names = ("equal", "steps", "ordered_steps", "left_out")
    rows = [{"source": each.source} | named(each.agreement, *names) for each in predictions]
    return table(rows, "Not compared: that needs an engine report that holds the token ids of its requests.")


def captures(found: Sequence[Capture]) -> Styler:
    """What was captured, request by request."""
    rows = [
        named(each, "request", "rank")
        | {"rows": len(each.positions), "width into fc": each.aux_hidden_states.shape[-1], "stages": list(each.stages)}
        for each in found
    ]
    return table(rows)


def streams(matches: Sequence[StreamMatch], expected_from: str) -> Styler:
    """Which boundary each stream is, and which it should be; ``expected_from``: who says so, or why none is matched."""
    names = ("stream", "boundary", "expected_boundary", "cosine", "relative_error", "shift")
    rows = [named(match, *names, "runner_up", "runner_up_cosine") for match in matches]
    for row in rows:
        row["as_trained"] = None if row["expected_boundary"] is None else row["boundary"] == row["expected_boundary"]
    shown = table(rows, f"Not compared: {expected_from}.")
    return shown.set_caption(escape(f"Expected boundaries: {expected_from}")) if rows else shown


def stages(diffs: Sequence[StageDiff], reason: str = "") -> Styler:
    """Ours against the engine's, in execution order; ``reason``: why there is none."""
    empty = reason or "The capture holds what entered fc alone: nothing inside the draft to compare."
    return table((named(diff, "stage", "ok", "relative", "tolerance", "max_abs", "cosine") for diff in diffs), empty)


def sweep(summaries: Sequence[Summary]) -> Styler:
    """Every setting at every load, with 95 % intervals."""
    setting = ("num_steps", "topk", "num_draft_tokens", "concurrency")
    measured = ("tokens_per_second", "tokens_per_second_ci", "accept_length", "speedup", "speedup_ci", "repeats")
    return table(named(summary, *setting, *measured, "status", "reason") for summary in summaries)


def recommendation(by_load: Mapping[str, Any], on_cpu: bool) -> Pretty:
    """The setting to serve at each load; a load without a measurement of no speculation is named as such."""
    words = "; ".join(
        f"{load} in flight: {'/'.join(map(str, best.values())) if isinstance(best, dict) else best or 'not measured'}"
        for load, best in by_load.items()
    )
    remark = (
        " Measured on a CPU, where verifying several tokens costs as much as decoding them one by one: "
        "this says nothing about a GPU."
    )
    return text(words + "." + remark * on_cpu)
