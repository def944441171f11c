"""One function a figure: frozen results in, a matplotlib figure out. Nothing here computes or judges.

The same thing has the same colour in every figure: what the draft does alone, what training said, what an
engine served, what was trained, what is captured.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from eagle3lib.findings.verdict import Diagnosis
    from eagle3lib.measuring.rates import Rate
    from eagle3lib.measuring.wiring_search import Candidate

COLOURS = {"offline": "#2a6fbb", "training": "#e08a1e", "engine": "#3a9a5b"}
TRAINED, CAPTURED, BOTH, QUIET = "#e08a1e", "#2a6fbb", "#3a9a5b", "#9aa3ad"


class NotebookFigure(Figure):
    """A figure that a notebook shows without pyplot, which would also keep it and choose a backend."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=150, bbox_inches="tight")
        return image.getvalue(), {"width": int(self.get_figwidth() * 100)}


def panels(width: float, height: float, *titles: str) -> tuple[Figure, Sequence[Axes]]:
    """A figure with one bare axes a title, side by side; inches."""
    figure = NotebookFigure(figsize=(width, height), layout="constrained", dpi=110)
    axes = figure.subplots(1, len(titles), squeeze=False)[0]
    for axis, title in zip(axes, titles, strict=True):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
        axis.set_title(title, loc="left", fontsize=11)
    return figure, axes


def legend(axis: Axes, below: Figure | None = None) -> None:
    """The axes' legend inside them, or ``below`` all axes of a figure, where it hides no interval."""
    place, where = (axis, {}) if below is None else (below, {"loc": "outside lower center", "ncols": 3})
    place.legend(*axis.get_legend_handles_labels(), frameon=False, fontsize=9, **where)


def points(
    axis: Axes, xs: Sequence[float], rates: Sequence[Rate | None], colour: str, label: str, intervals: bool = True,
    **style: Any,
) -> None:  # fmt: skip
    """Rates at their places with their intervals; those that a source does not determine are left out."""
    known = [(x, rate) for x, rate in zip(xs, rates, strict=True) if rate is not None and rate.value is not None]
    axis.plot([x for x, _ in known], [rate.value for _, rate in known], marker="o", color=colour, label=label, **style)
    for x, each in known:
        if intervals and each.ci is not None:
            axis.vlines(x, *each.ci, color=colour, alpha=0.45, lw=3)


def name_rows(axis: Axes, names: Sequence[str], what: str) -> None:
    """``names`` down the y axis, the first on top; ``what`` is measured along x."""
    axis.set_yticks(range(len(names)), names, fontsize=9)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", alpha=0.25)
    axis.set_xlabel(what)


def tower(layers: int | None, trained: Sequence[int] | None, captured: Sequence[int] | None) -> Figure:
    """The target's boundaries 0..n, bottom to top; those trained on left, those captured right.

    Each with its place among the aux states, from 1; green where both have the same boundary at the same place.
    ``layers``: n; without a target as far as boundaries are known.
    """
    layers = max([*(trained or ()), *(captured or ()), 1]) if layers is None else layers
    same = set(enumerate(trained or ())) & set(enumerate(captured or ()))
    figure, (axis,) = panels(4.6, 1.6 + 0.085 * layers, "Target states that reach the draft")
    axis.set(xlim=(-1.9, 1.9), ylim=(-1, layers + 1), xticks=[], ylabel="boundary (blocks passed)")
    axis.grid(False)
    for k in range(layers):
        axis.add_patch(Rectangle((-0.35, k + 0.12), 0.7, 0.76, facecolor="#e6e9ed", edgecolor="none", zorder=0))
    for side, boundaries, colour, name in ((-1, trained, TRAINED, "trained on"), (1, captured, CAPTURED, "captured")):
        axis.text(side * 1.05, layers + 0.4, name, ha="center", color=colour, weight="bold")
        if boundaries is None:
            axis.text(side * 1.05, layers / 2, "unknown", ha="center", color=QUIET)
        for place, k in enumerate(boundaries or ()):
            line = BOTH if (place, k) in same else colour
            axis.plot([0, side * 0.75], [k, k], color=line, lw=2.5, solid_capstyle="round")
            style = {"va": "center", "ha": "left" if side > 0 else "right", "color": colour, "fontsize": 9}
            axis.text(side * 0.82, k, f"{k}, aux state {place + 1}", **style)
    return figure


def depths(rows: Sequence[Any], coverage: float | None = None) -> Figure:
    """02: accuracy, conditional and cumulative, against depth. ``rows`` have these names as rates."""
    figure, (axis,) = panels(6.2, 3.6, "The draft alone, on the target's own tokens")
    shades = {"conditional": "#2a6fbb", "accuracy": "#7fb0e0", "cumulative": "#14406f"}
    places = range(1, len(rows) + 1)
    for name, colour in shades.items():
        points(axis, places, [getattr(row, name) for row in rows], colour, name)
    if coverage is not None:
        axis.axhline(coverage, color=QUIET, ls=":", label="draft vocabulary covers")
    axis.set(xlabel="depth (1 = first draft token)", ylabel="share right", ylim=(0, 1), xticks=places)
    legend(axis)
    return figure


def wirings(candidates: Sequence[Candidate], measured: str = "as configured") -> Figure:
    """02: predicted accept length under the wirings that were measured in full, best first.

    ``measured``: what the wiring is that the others are held against.
    """
    figure, (axis,) = panels(7.6, 0.9 + 0.34 * len(candidates), "Which wiring suits these weights?")
    for y, candidate in enumerate(candidates):
        value, interval = candidate.accept_length.value or 1.0, candidate.accept_length.ci
        colour = TRAINED if candidate.change == "as configured" else CAPTURED
        axis.barh(y, value - 1, left=1, color=colour, height=0.65)
        if interval is not None:
            axis.hlines(y, *interval, color="black", alpha=0.5, lw=1.5)
        axis.text(max(value, (interval or (0, 0))[1]), y, f" {value:.2f}", va="center", fontsize=9)
    names = [measured if each.change == "as configured" else each.change for each in candidates]
    name_rows(axis, names, "predicted accept length (bonus token counted)")
    axis.set_xlim(1, None)
    return figure


def _opacities(sources: Sequence[Any]) -> list[float]:
    """The second and third source of one kind are paler than the first."""
    seen: Counter[str] = Counter()
    opacities = []
    for source in sources:
        opacities.append(max(0.3, 1 - 0.45 * seen[source.kind]))
        seen[source.kind] += 1
    return opacities


def acceptance(sources: Sequence[Any], ceiling: Any = None) -> Figure:
    """03: marginal and conditional acceptance per draft position, every source on the same axes.

    ``ceiling``: what the draft vocabulary allows, as one more source; the ideal accepts everything.
    """
    figure, axes = panels(9.4, 3.9, "marginal acceptance", "conditional acceptance")
    for axis, name in zip(axes, ("marginal", "conditional"), strict=True):
        known = [i for source in sources for i, rate in enumerate(getattr(source, name) or (), 1) if rate is not None]
        longest = max(known, default=1)
        axis.axhline(1, color=QUIET, lw=1, label="ideal: every draft accepted")
        if ceiling is not None:
            rates = getattr(ceiling, name)[:longest]
            points(axis, range(1, len(rates) + 1), rates, QUIET, ceiling.source, ls=":", intervals=False)
        for source, opacity in zip(sources, _opacities(sources), strict=True):
            if rates := getattr(source, name):
                style = {"ls": "--" if source.kind == "offline" else "-", "alpha": opacity}
                points(axis, range(1, len(rates) + 1), rates, COLOURS[source.kind], source.source, **style)
        axis.set(xlabel="draft position", ylim=(0, 1.03), xticks=range(1, longest + 1), ylabel="share accepted")
    legend(axes[0], below=figure)
    return figure


def histogram(sources: Sequence[Any]) -> Figure:
    """03: how many drafts each verify step accepted, as shares of each source's steps."""
    drawn = [source for source in sources if source.histogram]
    figure, (axis,) = panels(6.2, 3.2, "Verify steps by what they accepted")
    width = 0.8 / max(1, len(drawn))
    for i, (source, opacity) in enumerate(zip(drawn, _opacities(drawn), strict=True)):
        steps = sum(source.histogram)
        places = [j + (i - (len(drawn) - 1) / 2) * width for j in range(len(source.histogram))]
        shares = [count / steps for count in source.histogram]
        colour, label = COLOURS[source.kind], f"{source.source} ({steps} steps)"
        axis.bar(places, shares, width, color=colour, label=label, alpha=opacity)
    longest = max((len(source.histogram) for source in drawn), default=1)
    axis.set(xlabel="drafts accepted in a verify step", ylabel="share of steps", xticks=range(longest))
    legend(axis)
    return figure


def throughput(summaries: Sequence[Any]) -> Figure:
    """05: tokens per second of every setting against concurrency."""
    figure, (axis,) = panels(6.2, 3.6, "What each setting serves")
    measured = [summary for summary in summaries if summary.status == "ok"]
    for setting in sorted({summary.setting for summary in measured}):
        line = sorted((s for s in measured if s.setting == setting), key=lambda s: s.concurrency)
        off = not any(setting)
        label = "no speculation" if off else "/".join(map(str, setting))
        xs, ys = [s.concurrency for s in line], [s.tokens_per_second for s in line]
        drawn = axis.plot(xs, ys, marker="o", color=QUIET if off else None, label=label)
        for summary in line:
            if summary.tokens_per_second_ci is not None:
                interval = summary.tokens_per_second_ci
                axis.vlines(summary.concurrency, *interval, color=drawn[0].get_color(), alpha=0.4, lw=3)
    axis.set(xlabel="requests in flight", ylabel="tokens per second, all requests", ylim=(0, None))
    axis.set_xticks(sorted({summary.concurrency for summary in measured}))
    legend(axis)
    return figure


def confidences(diagnosis: Sequence[Diagnosis]) -> Figure:
    """06: the causes, most likely first."""
    figure, (axis,) = panels(6.4, 0.9 + 0.34 * max(1, len(diagnosis)), "What is wrong")
    axis.barh(range(len(diagnosis)), [each.confidence for each in diagnosis], color=CAPTURED, height=0.6)
    name_rows(axis, [each.kind for each in diagnosis], "confidence")
    axis.set_xlim(0, 1)
    return figure
