"""02: what the draft's own predictions say about its wiring and its quality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from eagle3lib.findings.boundaries import ids_remedy, layer_difference
from eagle3lib.findings.edits import place_of, set_config
from eagle3lib.findings.finding import Edit, Finding
from eagle3lib.findings.inspection import Inspection
from eagle3lib.findings.sample_rules import worse_on_traffic
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.rates import Rate
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.measuring.wiring_search import GOOD_FIRST, Candidate, Search

#: The draft vocabulary may miss this share of what the target says before it is worth a warning.
MAX_MISSED = 0.05
#: Below this a draft is not poor but disconnected: one fed other states still guesses common words.
NEVER = 0.02

#: The kind of finding that names each switch.
KINDS = {
    "shift": "align.shift",
    "norm_before_fc": "norm.before_fc",
    "fc_norm": "norm.fc",
    "norm_before_residual": "norm.before_residual",
    "norm_output": "norm.output",
    "norm_before_head": "norm.head",
    "rope_theta": "rope.theta",
    "rope_scaling": "rope.scaling",
    "window": "attention.window",
    "attention_bias": "arch.unsupported",
    "qk_norm": "arch.unsupported",
    "later_norm": "arch.unsupported",
    "d2t": "vocab.map",
    "head": "vocab.tied_head",
    "embedding": "embed.replaced",
}


def search_findings(search: Search, inspection: Inspection) -> list[Finding]:
    """Wiring and model judged by the search; silent where the configured wiring is as good as any."""
    better = search.better
    found = [] if better is None else list(_changes(search, better, inspection))
    if search.answer in ("model", "both"):
        found.append(_undertrained(better or search.as_configured, disconnected=not search.idle_slots))
    return found


def _changes(search: Search, better: Candidate, inspection: Inspection) -> Iterator[Finding]:
    here = search.as_configured
    low, high = better.gain_ci or (better.gain, better.gain)
    evidence = (
        f"With {better.change} the draft's predicted accept length is {better.accept_length.value:.3f}, as "
        f"configured {here.accept_length.value:.3f}: a gain of {better.gain:.3f} ({low:.3f} to {high:.3f}); "
        f"first position right {better.conditional_depth1.value:.0%} against {here.conditional_depth1.value:.0%}."
    )
    if better.near:
        others = "; ".join(change.split(" instead of")[0] for change in better.near)
        evidence += f" That the wiring is wrong is sure; too near to tell from this one on these samples: {others}."
    for switch, (was, wanted) in search.configured.differences(better.wiring).items():
        if switch == "boundaries":
            kind = layer_difference(list(was), list(wanted), inspection.layers) or "aux.order"
            remedy, edits = ("", ()) if kind == "aux.order" else ids_remedy(wanted, inspection)
            remedy = remedy or f"Permute the column blocks of fc.weight to boundaries {sorted(wanted)}."
            subject, lost = "eagle_config.eagle_aux_hidden_state_layer_ids", "fc reads states it was not trained on"
        else:
            kind, subject = KINDS[switch], place_of(switch, inspection) or switch
            remedy, edits = _switch_remedy(switch, better.wiring, inspection)
            lost = f"the draft was trained with {switch} = {wanted}, not {was}"
        consequence = f"{lost}: it accepts {better.gain:.2f} tokens a verify step less than it can."
        yield Finding(kind, "error", subject, evidence, consequence, remedy, edits)


def _switch_remedy(switch: str, wanted: Wiring, inspection: Inspection) -> tuple[str, tuple[Edit, ...]]:
    field, value = place_of(switch, inspection), getattr(wanted, switch)
    if not field:
        return f"SGLang has no field for {switch}: change the engine's model code, or train the draft again.", ()
    if switch == "head":
        value = inspection.weights.head_rows if field == "draft_vocab_size" else value == "tied"
    elif switch == "rope_scaling":
        value = dict(value) if value else None
        if field == "rope_parameters":  # one mapping holds the base too
            value = {"rope_type": "default", "rope_theta": wanted.rope_theta} | (value or {})
    cure = set_config(field, value)
    return cure["remedy"], tuple(cure["edits"])


def _undertrained(best: Candidate, disconnected: bool) -> Finding:
    """``disconnected``: no stream is known to be none of those trained on, so that the layers are not to blame."""
    first, under = best.conditional_depth1, f"Under the best wiring tried ({best.change})"
    if first.ci is None or first.ci[1] >= NEVER or not disconnected:
        return _poor(first, under)
    return Finding(
        "vocab.head_mismatch",
        "warning",
        "d2t and lm_head.weight",
        f"{under} the first position is right in {_share(first)} of all starts: next to never, and no want of "
        "training explains that.",
        "What the head says is decoded to other words, or head, map and layers are not of one making.",
        "Export head and d2t of one making, of this target's vocabulary; then run this notebook again.",
    )


def _poor(first: Rate, under: str) -> Finding:
    return Finding(
        "quality.undertrained",
        "warning",
        "the draft's weights",
        f"{under} the first position is right in {_share(first)} of all starts, below {GOOD_FIRST:.0%}.",
        "No setting of the engine can make this draft accept more than it predicts.",
        "Train longer or on more varied text of the kind that is served; then run this notebook again.",
    )


def measured_wiring(inspection: Inspection, dataset: Iterable[SampleStates]) -> tuple[Wiring, str]:
    """The wiring to measure, and in words what it is.

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


def sample_findings(inspection: Inspection, measured: Wiring, first: Rate) -> list[Finding]:
    """The samples hold other states than the engine captures: an error where the draft predicts well on them.

    ``first``: the first position right, under the samples' boundaries.
    """
    captured, target = inspection.captured_boundaries, inspection.target
    if target is None or captured is None or captured == measured.boundaries or inspection.served.captured.problems:
        return []  # where the engine cannot capture them at all, notebook 01 says it
    value = first.value or 0.0  # fed other states a draft is right in one of twenty: half of good is sure enough
    good = value >= GOOD_FIRST and (first.ci[0] if first.ci else value) >= GOOD_FIRST / 2
    same = len(captured) == len(measured.boundaries)
    kind = layer_difference(list(captured), list(measured.boundaries), target.layers) if same else "aux.count"
    remedy, edits = ids_remedy(measured.boundaries, inspection)
    return [
        Finding(
            kind or "aux.order",
            "error" if good else "warning",
            "eagle_config.eagle_aux_hidden_state_layer_ids",
            f"The samples hold boundaries {list(measured.boundaries)}, on which the first position is right in "
            f"{_share(first)}; the engine captures {list(captured)}.",
            "fc reads states it was not trained on: next to nothing is accepted, whatever the flags.",
            remedy,
            edits if good else (),
        )
    ]


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
    if shown:
        answer = "both" if answer in ("model", "both") else "wiring"
    if worse_on_traffic(found):  # whatever the samples say, what is served is what counts
        answer = {"sound": "model", "wiring": "both"}.get(answer, answer)
    if shown and not (search and search.better):
        return answer, measured.boundaries
    return answer, search.trained_boundaries if search and named else None


def accuracy_findings(first: Rate) -> list[Finding]:
    """``quality.undertrained`` from the first position alone, where no wiring was searched; one request is too few."""
    if first.ci is None or first.ci[1] >= GOOD_FIRST:
        return []
    return [_poor(first, "As configured")]


def coverage_findings(coverage: Rate) -> list[Finding]:
    """``vocab.coverage``: a warning where more than 5 % are missed beyond the interval, else a note."""
    if coverage.value is None or coverage.value >= 1:
        return []
    surely = coverage.ci is not None and coverage.ci[1] < 1 - MAX_MISSED
    missed = f"{1 - coverage.value:.1%} of the target's {coverage.denominator:g} tokens"
    return [
        Finding(
            "vocab.coverage",
            "warning" if surely else "note",
            "the draft vocabulary",
            f"It lacks {missed}; coverage {_share(coverage)}.",
            "A token outside the draft vocabulary is never proposed: it ends every chain that reaches it.",
            "Choose the draft vocabulary from text of the kind that is served, or make it larger.",
        )
    ]


def _share(rate: Rate) -> str:
    interval = f", 95 % interval {rate.ci[0]:.1%} to {rate.ci[1]:.1%}" if rate.ci else ""
    return f"{rate.value:.1%} ({rate.numerator:g} of {rate.denominator:g}{interval})"
