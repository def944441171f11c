"""Notebook 03: what acceptance depends on, each as one figure with a summary of what it means.

A view gives ``(figure, summary)``; where there is nothing to draw the figure is ``None`` and the summary says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eagle3lib.measuring.rates import Rate
from eagle3lib.measuring.steps import Group, by_category, by_kind, by_position, by_prompt_length, first_and_rest, worst
from eagle3lib.reading.setting import Setting
from eagle3lib.reading.token_kinds import decoder
from eagle3lib.reporting import figures
from eagle3lib.reporting.figures import COLOURS, legend, name_rows, panels, points
from eagle3lib.reporting.tables import length, table, text

if TYPE_CHECKING:
    from IPython.display import Pretty
    from matplotlib.axes import Axes
    from pandas.io.formats.style import Styler

    from eagle3lib.findings.breakdown_rules import Limit
    from eagle3lib.findings.offline import Breakdown
    from eagle3lib.measuring.acceptance import Acceptance
    from eagle3lib.measuring.served_wiring import ServedWiring
    from eagle3lib.reading.engine_reports import EngineReport
    from eagle3lib.reading.training_reports import TrainingReport

View = tuple[Figure | None, str]
#: A further draft step that adds less than this share of the accept length has stopped paying.
PAYS = 0.01
LENGTH = "accept length, bonus in"


@dataclass(frozen=True)
class Source:
    """The verify steps of one source (``measuring.steps``), to be drawn in its kind's colour."""

    name: str
    kind: str  # offline or engine
    steps: pd.DataFrame


def given(known: Setting, reports: Sequence[EngineReport], training: Sequence[TrainingReport]) -> Pretty:
    """The setting that the inputs name, and which reports were read."""
    unread = [f"Not read: {report.unreadable}" for report in reports if report.unreadable]
    summary = (
        f"num_steps {known.num_steps}, topk {known.topk}, num_draft_tokens {known.num_draft_tokens} (None: not known); "
        f"engine reports: {len(reports) - len(unread)}; training reports: {len(training)}"
    )
    return text("\n".join([summary, *unread]))


def predicted(samples: Breakdown, setting: Setting, known: Setting, left_out: Sequence[str]) -> Pretty:
    """For which setting the samples were predicted, and what could not be."""
    done = f"Predicted for {setting}{' (assumed)' * (not known.num_steps)}." if samples.sources else ""
    return text(" ".join([done, *left_out]).strip() or "No samples were given, so none are predicted.")


def step_sources(offline: pd.DataFrame, served: Mapping[str, pd.DataFrame]) -> list[Source]:
    """The samples' predicted steps, and each report's whose steps were seen in order."""
    found = [Source("predicted for the samples", "offline", offline)]
    found += [Source(name, "engine", steps) for name, steps in served.items()]
    return [source for source in found if len(source.steps)]


def curves(sources: Sequence[Acceptance], ceiling: Acceptance | None) -> View:
    """Marginal and conditional acceptance per position, every source on the same axes."""
    if not sources:
        return None, "No acceptance to draw: no source was given."
    first = {s.source: s.conditional[0] for s in [*sources, *([ceiling] if ceiling else [])] if s.conditional}
    shares = [f"{name} {rate.value:.0%}" for name, rate in first.items() if rate and rate.value is not None]
    return figures.acceptance(sources, ceiling), (
        f"Share accepted at the first position: {'; '.join(shares) or 'given by no source'}. A conditional rate that "
        "falls after it points at what the draft feeds back to itself; marginal rates are the products."
    )


def histogram(sources: Sequence[Acceptance]) -> View:
    """Verify steps by what they accepted."""
    counted = {source.source: source.histogram for source in sources if source.histogram}
    if not counted:
        return None, "No histogram to draw: no source counts its verify steps by what they accepted."
    shares = [
        f"{name}: {steps[0] / sum(steps):.0%} of the steps accept nothing, {steps[-1] / sum(steps):.0%} "
        f"all {len(steps) - 1}"
        for name, steps in counted.items()
    ]
    return figures.histogram(sources), f"{'; '.join(shares)}."


def steps(settings: Mapping[Setting, Rate], served: Sequence[Acceptance], setting: Setting) -> View:
    """Accept length against the number of draft steps, for chains; what was served at its own place."""
    chains = {steps: rate for (steps, topk, _), rate in sorted(settings.items()) if topk == 1 and rate.value}
    if len(chains) < 2:
        return None, "Accept length against num_steps is not drawn: that needs samples that can be predicted."
    figure, (axis,) = panels(6.2, 3.4, "Where does another draft token stop paying?")
    points(axis, list(chains), list(chains.values()), COLOURS["offline"], "predicted for the samples", ls="--")
    shown = [source for source in served if source.accept_length is not None] if setting[1] == 1 else []
    for i, source in enumerate(shown):
        points(axis, [setting[0] + 0.12 * (i + 1)], [source.accept_length], COLOURS["engine"], source.source, ls="")
    axis.set(xlabel="num_steps (draft tokens a step, topk 1)", ylabel=LENGTH, xticks=list(chains))
    _from_one(axis)
    legend(axis)
    return figure, _pays({steps: rate.value or 0.0 for steps, rate in chains.items()})


def _pays(lengths: Mapping[int, float]) -> str:
    """The last number of steps whose draft token still adds something."""
    gains = {n: lengths[n] - lengths[n - 1] for n in lengths if n - 1 in lengths}
    paying = [n for n in gains if all(gains[m] >= PAYS * lengths[m - 1] for m in gains if m <= n)]
    last = max(paying, default=min(lengths))
    after = f"the next one adds {gains[last + 1]:.3f}" if last + 1 in gains else "more were not computed"
    gain = f", whose last draft token adds {gains[last]:.3f} to it" if last in gains else ""
    return (
        f"Acceptance pays up to num_steps {last}: accept length {lengths[last]:.3f}{gain}; {after} "
        f"({PAYS:.0%} is taken for nothing). What a step costs, notebook 05 measures."
    )


def settings_table(settings: Mapping[Setting, Rate], in_force: Setting) -> Styler:
    """Every setting that was computed: the static twin of ``widgets.settings_form``."""
    return table(
        (
            {
                **dict(zip(Setting._fields, setting, strict=True)),
                "predicted accept length": rate,
                "share of the verified tokens kept": (rate.value or 0) / setting[2],
                "in force": setting == in_force,
            }
            for setting, rate in sorted(settings.items())
        ),
        "No setting is predicted: that needs draft, target and samples.",
    )


def lengths(found: Sequence[Source], limits: Sequence[Limit]) -> View:
    """Accept length along the conversation and by prompt length; the draft's own limits where they lie in range."""
    if not found:
        return None, (
            "Position and prompt length are not drawn: that needs samples, or served requests whose steps were "
            "seen in order (notebook 04 streams them so)."
        )
    named = {by_position: "position in the conversation", by_prompt_length: "prompt length"}
    figure, pair = panels(9.4, 3.6, *(f"By {name}" for name in named.values()))
    drawn = []
    for axis, (cut, name) in zip(pair, named.items(), strict=True):
        furthest = 0
        for source in found:
            groups = cut(source.steps)
            drawn += groups if cut is by_position and source is found[0] else []
            middles = [sum(group.span or ()) / 2 for group in groups]
            points(axis, middles, [group.accept_length for group in groups], COLOURS[source.kind], source.name)
            furthest = max([furthest, *(group.span[1] for group in groups if group.span)])
        for limit in limits:
            if limit.tokens <= furthest:
                axis.axvline(limit.tokens, color="black", ls=":", lw=1)
                across = axis.get_xaxis_transform()
                axis.text(limit.tokens, 0.98, f" {limit.name}", transform=across, fontsize=8, va="top")
        axis.set(xlabel=f"{name}, tokens", ylabel=LENGTH)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        _from_one(axis)
    legend(pair[0], below=figure)
    return figure, _along(drawn, limits)


def _along(groups: Sequence[Group], limits: Sequence[Limit]) -> str:
    beyond = [limit for limit in limits if groups and groups[-1].span and limit.tokens <= groups[-1].span[1]]
    reach = "; ".join(f"{limit.name} ({limit.tokens}) lies within" for limit in beyond)
    reach = reach or (f"no request reaches {limits[0].name} ({limits[0].tokens})" if limits else "no limit is known")
    if len(groups) < 2:
        return f"Too few steps for a trend; {reach}."
    first, last = groups[0], groups[-1]
    low, high = last.accept_length.ci or (0.0, 0.0)
    start = first.accept_length.value or 0.0
    trend = "falls" if high < start else "rises" if low > start else "keeps its height"
    return (
        f"Acceptance {trend} along the conversation: {length(first.accept_length)} at {first.label} tokens, "
        f"{length(last.accept_length)} at {last.label}; {reach}."
    )


def parts(found: Sequence[Source]) -> View:
    """The first verify step after a prefill apart from the rest, and the prompts' categories."""
    groups = [(source, first_and_rest(source.steps), by_category(source.steps)) for source in found]
    drawn = [(source, {group.label: group.accept_length for group in first + kinds}) for source, first, kinds in groups]
    if not any(rates for _, rates in drawn):
        return None, "Nothing to set apart: no steps in order, and no categories."
    summary = []
    for source, first, kinds in groups:
        shares = [f"{group.label} {length(group.accept_length)}" for group in first]
        if len(kinds) > 1:
            ends = [f"{group.label} {group.accept_length.value:.2f}" for group in (kinds[0], kinds[-1])]
            shares.append(f"categories from {' to '.join(ends)}")
        summary.append(f"{source.name}: {'; '.join(shares)}.")
    return _by_label(drawn, "Which steps and which requests?", LENGTH, (1, None)), " ".join(summary)


def kinds(found: Sequence[Source], kind: Callable[[int], str] | None) -> View:
    """Drafts accepted, by the kind of token that the target said."""
    counted = [(source, rates) for source in found if kind and (rates := by_kind(source.steps, kind))]
    if not counted:
        return None, "Kinds of token are not drawn: that needs the draft, and samples or served requests with ids."
    source, rates = counted[0]
    missed = {label: (rate.denominator or 0) - (rate.numerator or 0) for label, rate in rates.items()}
    most, (lowest, share) = max(missed, key=lambda label: missed[label]), next(iter(rates.items()))
    figure = _by_label(counted, "What kind of token is rejected?", "share of verified drafts accepted", (0, 1))
    return figure, (
        f"{source.name}: of {sum(missed.values()):g} rejections {missed[most]:g} are where the target said {most!r}; "
        f"the lowest share is accepted of {lowest!r} ({share.value:.0%})."
    )


def _by_label(
    drawn: Sequence[tuple[Source, Mapping[str, Rate]]], title: str, what: str, limits: tuple[float, float | None]
) -> Figure:
    """Rates with their intervals along x, a row a label, every source in its kind's colour."""
    labels = list(dict.fromkeys(label for _, rates in drawn for label in rates))
    figure, (axis,) = panels(7.4, 1.1 + 0.3 * len(labels), title)
    for i, (source, rates) in enumerate(drawn):
        colour, ys = COLOURS[source.kind], [labels.index(label) + 0.25 * i for label in rates]
        axis.scatter([rate.value or 0.0 for rate in rates.values()], ys, color=colour, label=source.name, zorder=3)
        for y, rate in zip(ys, rates.values(), strict=True):
            if rate.ci is not None:
                axis.hlines(y, *rate.ci, color=colour, alpha=0.45, lw=3)
    name_rows(axis, labels, what)
    axis.set_xlim(limits)
    legend(axis, below=figure)
    return figure


def wirings(found: Sequence[ServedWiring]) -> Styler:
    """The wirings that predict most of what each report's requests accepted."""
    rows = [
        {
            "source": each.source, "wiring": fit.change, "boundaries": list(fit.wiring.boundaries),
            "responses exactly": fit.exact, "verify steps": fit.steps,
        }
        for each in found
        for fit in each.fits[:4]
    ]  # fmt: skip
    return table(rows, "Nothing to read it from: that needs responses with their token ids and histograms.")


def worst_table(steps: pd.DataFrame, target: str = "") -> Styler:
    """The requests with the lowest accept length. ``target``: whose tokenizer gives the replies' text; empty: none."""
    found = worst(steps)
    if target:
        decode, rows = decoder(target), found[["tokens", "prompt_tokens"]].itertuples(index=False)
        found["text"] = [decode(tokens[prompt:]) if tokens else "" for tokens, prompt in rows]
    return table(found.drop(columns=["request", "tokens"]).to_dict("records"), "No request has steps in order.")


def _from_one(axis: Axes) -> None:
    """No accept length lies below 1, and differences of hundredths should look small."""
    axis.set_ylim(1, max(1.5, axis.get_ylim()[1]))
