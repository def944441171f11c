"""02: what follows from the draft's own predictions for its wiring, its quality and the samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from eagle3lib.findings.breakdown_rules import SMALL_FALL, Limit, category_findings, length_findings, step_sides
from eagle3lib.findings.catalogue import kind_of_switch, make_finding
from eagle3lib.findings.edits import place_of, set_config, set_ids
from eagle3lib.findings.finding import Finding, interval
from eagle3lib.findings.inspection import Inspection
from eagle3lib.findings.rules_layers import layer_difference
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.accuracy import Evaluation
from eagle3lib.measuring.rates import Rate, is_significant, rate, unpaired_difference
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.measuring.steps import predicted_steps
from eagle3lib.measuring.survey import LastState, Survey
from eagle3lib.measuring.vocab_map import LearnedMap
from eagle3lib.measuring.wiring_search import GOOD_FIRST, Candidate, Search
from eagle3lib.reading.draft_config import SGLANG_AUX_KEY

#: The draft vocabulary may miss this share of the target's tokens before it is worth a warning.
MAX_MISSED = 0.05
#: Below this a draft is not poor but disconnected: one fed other states still guesses common tokens.
NEVER = 0.02


def search_findings(search: Search, inspection: Inspection, half_learned: bool = False) -> Iterator[Finding]:
    """Wiring and model judged by the search; silent where the configured wiring is as good as any.

    ``half_learned``: the search ran on a learned vocabulary map, which lacks the rarer rows: no test of the model.
    """
    if search.better:
        yield from _changes(search, search.better, inspection)
    if search.answer in ("model", "both") and not half_learned:
        best = search.better or search.as_configured
        first, under = best.conditional_depth1, f"Under the best wiring tried ({best.change})"
        # An idle column block: a stream is known to be none of those trained on, so that the layers may be to blame.
        never = first.ci is not None and first.ci[1] < NEVER and not search.harmful_aux_states
        yield _poor(first, under, never)


def _changes(search: Search, better: Candidate, inspection: Inspection) -> Iterator[Finding]:
    here = search.as_configured
    evidence = (
        f"With {better.change} the draft's predicted accept length is {better.accept_length.value:.3f}, as "
        f"configured {here.accept_length.value:.3f}: a gain of {better.gain:.3f}{interval(better.gain_ci, '.3f')}; "
        f"first position right {better.conditional_depth1.value:.0%} against {here.conditional_depth1.value:.0%}."
    )
    if better.near:
        others = "; ".join(change.split(" instead of")[0] for change in better.near)
        evidence += f" That the wiring is wrong is sure; too near to this one to decide on these samples: {others}."
    for switch, (was, wanted) in search.configured.differences(better.wiring).items():
        if switch == "boundaries":
            kind, subject = layer_difference(was, wanted, inspection.layers), SGLANG_AUX_KEY
            cure = {} if kind == "aux.order" else set_ids(wanted, inspection)
        else:
            kind, subject = kind_of_switch(switch), place_of(switch, inspection) or switch
            cure = _set_switch(switch, better.wiring, inspection)
        lost = f"it accepts {better.gain:.2f} tokens a verify step less than it can"
        consequence = f"The draft was trained with {switch} = {wanted}, not {was}: {lost}."
        yield make_finding(kind, subject, evidence, severity="error", consequence=consequence, **cure)


def _set_switch(switch: str, wanted: Wiring, inspection: Inspection) -> dict[str, Any]:
    field, value = place_of(switch, inspection), getattr(wanted, switch)
    if not field:
        how = "change the engine's model code, or train the draft again"
        return {"remedy": f"SGLang has no field for {switch}: {how}."}
    if switch == "head":
        value = inspection.weights.head_rows if field == "draft_vocab_size" else value == "tied"
    elif switch == "rope_scaling":
        value = dict(value) if value else None
        if field == "rope_parameters":  # one mapping holds the base too
            value = {"rope_type": "default", "rope_theta": wanted.rope_theta} | (value or {})
    return set_config(field, value)


def _poor(first: Rate, under: str, never: bool = False) -> Finding:
    """``never``: next to nothing is right, so that more training would not help."""
    limit = NEVER if never else GOOD_FIRST
    evidence = f"{under} the first position is right in {_share(first)} of all starts, below {limit:.0%}."
    if never:
        return make_finding("vocab.head_mismatch", "d2t and lm_head.weight", evidence, case="measured")
    return make_finding("quality.undertrained", "the draft's weights", evidence)


def measured_wiring(inspection: Inspection, dataset: Iterable[SampleStates]) -> tuple[Wiring, str]:
    """The wiring to measure, and a description of it.

    As the engine serves it where its boundaries' states are at hand. Files of a large target often hold the states
    that the draft was trained on and no other: then the samples' own boundaries.

    Raises:
        InputError: neither is possible.
    """
    first = next(iter(dataset))
    configured = inspection.served.wiring or inspection.trained.wiring
    if configured is not None and set(configured.boundaries) <= set(first.states):
        known = first.sample.states is None or first.sample.boundaries
        return configured, "as configured" if known else "as configured; the samples do not name their boundaries"
    named = first.sample.boundaries
    if named is None:
        return inspection.runnable_wiring, "as configured"
    switches = inspection.served.wiring or inspection.trained.switches
    return switches.replace(boundaries=named), "on the samples' own boundaries; the captured ones are not at hand"


def sample_findings(inspection: Inspection, measured: Wiring, first: Rate) -> Iterator[Finding]:
    """The samples hold other states than the engine captures: an error where the draft predicts well on them.

    ``first``: the first position right, under the samples' boundaries.
    """
    captured, boundaries = inspection.captured_boundaries, measured.boundaries
    if inspection.target is None or captured in (None, boundaries) or inspection.served.captured.problems:
        return  # where the engine cannot capture them at all, notebook 01 reports it
    value = first.value or 0.0  # fed other states a draft is right in one of twenty: half of good is sure enough
    good = value >= GOOD_FIRST and (first.ci[0] if first.ci else value) >= GOOD_FIRST / 2
    same = len(captured) == len(boundaries)
    kind = layer_difference(captured, boundaries, inspection.layers) if same else "aux.count"
    right = f"on which the first position is right in {_share(first)}"
    what = f"The samples hold boundaries {list(boundaries)}, {right}; the engine captures {list(captured)}."
    cure = set_ids(boundaries, inspection)
    if not good:
        cure["edits"] = []
    yield make_finding(kind, SGLANG_AUX_KEY, what, severity="error" if good else "warning", **cure)


def conclusion(
    search: Search | None, found: Sequence[Finding], measured: Wiring, named: bool
) -> tuple[str, tuple[int, ...] | None]:
    """Notebook 02's answer, and the boundaries these weights were trained on where that is sure.

    What the samples' own boundaries showed counts beside the search: the engine captures others, so that the wiring
    is at fault, whatever else is. Files that do not name their boundaries (``named`` is false) make nothing sure
    about them.
    """
    shown = any(finding.kind.startswith("aux.") and finding.severity == "error" for finding in found)
    answer: str = "undecided" if search is None else search.answer
    if any(finding.kind == "vocab.map" and finding.severity == "error" for finding in found):
        answer = "wiring"
    elif shown:
        answer = "both" if answer in ("model", "both") else "wiring"
    if worse_on_traffic(found):  # whatever the samples show, the traffic counts
        answer = {"sound": "model", "wiring": "both"}.get(answer, answer)
    if shown and not (search and search.better):
        return answer, measured.boundaries
    return answer, search.trained_boundaries if search and named else None


def worse_on_traffic(found: Sequence[Finding]) -> bool:
    """Whether :func:`traffic_findings` found something."""
    return any(each.subject == "traffic" and each.kind in ("quality.domain", "context.length") for each in found)


def map_findings(learned: LearnedMap) -> Iterator[Finding]:
    """``vocab.map``: the head's rows are other tokens than the draft's map gives."""
    if learned.shown:
        what = (
            f"At depth 1 {_share(learned.as_given)} is right as given, {_share(learned.learned)} with a map learned on "
            f"the other half of the samples. Of {learned.seen} ids proposed often enough, {len(learned.tokens)} mean "
            "another token."
        )
        yield make_finding("vocab.map", "d2t and lm_head.weight", what, case="learned")


def accuracy_findings(first: Rate) -> Iterator[Finding]:
    """``quality.undertrained`` from the first position alone, where no wiring was searched; one request is too few."""
    if first.ci and first.ci[1] < GOOD_FIRST:
        yield _poor(first, "As configured")


def coverage_findings(coverage: Rate) -> Iterator[Finding]:
    """``vocab.coverage``: a warning where more than 5 % are missed beyond the interval, else a note."""
    if coverage.value is not None and coverage.value < 1:
        surely = coverage.ci is not None and coverage.ci[1] < 1 - MAX_MISSED
        missed = f"{1 - coverage.value:.1%} of the target's {coverage.denominator:g} tokens"
        what = f"It lacks {missed}; coverage {_share(coverage)}."
        yield make_finding("vocab.coverage", "the draft vocabulary", what, severity="warning" if surely else "note")


def kind_findings(evaluation: Evaluation, num_steps: int) -> Iterator[Finding]:
    """``quality.domain``: a category of the samples that is predicted poorly while the others are not."""
    return category_findings("samples", evaluated_steps(evaluation, num_steps))


def evaluated_steps(evaluation: Evaluation, num_steps: int) -> pd.DataFrame:
    """The verify steps with their places in the conversation, as ``measuring.steps`` has them."""
    return predicted_steps(zip(evaluation.steps(num_steps), evaluation.requests, strict=True), num_steps)


def traffic_findings(
    own: Evaluation, samples: Survey, served: Evaluation, traffic: Survey, num_steps: int
) -> Iterator[Finding]:
    """``context.length`` or ``quality.domain``: traffic is predicted worse than the samples, which are fine.

    It is the length where traffic falls beyond the longest sample, or lies there altogether.
    """
    usual, here = own.accept_length(num_steps), served.accept_length(num_steps)
    first = own.depths()[0].conditional
    if first.value is None or first.value < GOOD_FIRST or here.value is None or usual.value is None:
        return
    near, far = step_sides(evaluated_steps(served, num_steps), samples.longest)
    limit = Limit(samples.longest, "context.length", "the longest of the samples")
    longer = list(length_findings("traffic", near, far, limit))
    yield from longer
    within = rate(near["tokens"], near["steps"])
    compared = within if longer and within.value is not None else here
    falls = is_significant(unpaired_difference(compared, usual), min(len(own.requests), len(served.requests)))
    if not falls or compared.value > (1 - SMALL_FALL) * usual.value:
        return
    beyond = within.value is None
    all_of_it = f"; all of it lies beyond the longest sample of {samples.longest} tokens" if beyond else ""
    what = (
        f"Predicted accept length {compared.value:.2f}{interval(compared.ci)} on traffic, {usual.value:.2f}"
        f"{interval(usual.ci)} on the samples{all_of_it}. Coverage of the draft vocabulary "
        f"{traffic.coverage.value:.1%} against {samples.coverage.value:.1%}."
    )
    yield make_finding("context.length" if beyond else "quality.domain", "traffic", what, case="traffic")


def teacher_findings(last: LastState, first: Rate) -> Iterator[Finding]:
    """``target.mismatch``: a trainer that reads the files as their layout states learns from another state.

    ``align.shift`` where the state of another row gives the tokens. ``first``: the first position right under the
    measured wiring. An error where that is poor.
    """
    if last.shift:
        shares = ", ".join(f"{shift:+d}: {share:.0%}" for shift, share in last.shares.items())
        off = f"{abs(last.shift)} row{'s' * (abs(last.shift) > 1)} {'late' if last.shift < 0 else 'early'}"
        what = f"The states are {off}: tokens that the last state gives, by shift of its row, {shares}."
        yield make_finding("align.shift", "the samples' last state", what, case="rows")
        return
    wrong = None not in (last.normed, last.claimed) and last.normed != last.claimed
    poor = first.value is not None and first.value < GOOD_FIRST
    found = partial(make_finding, "target.mismatch", "the samples' last state", f"{last.summary()}.")
    if wrong:
        yield found(case="norm", severity="error" if poor else "warning")
    elif last.foreign:
        yield found(case="foreign")


def overlap(a: Rate, b: Rate) -> str:
    """Whether the 95 % intervals overlap, as text."""
    if a.ci is None or b.ci is None:
        return "no interval"
    return "apart" if a.ci[1] < b.ci[0] or b.ci[1] < a.ci[0] else "overlap"


def _share(found: Rate) -> str:
    span = f", 95 % interval {found.ci[0]:.1%} to {found.ci[1]:.1%}" if found.ci else ""
    return f"{found.value:.1%} ({found.numerator:g} of {found.denominator:g}{span})"
