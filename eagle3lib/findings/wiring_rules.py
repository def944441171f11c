"""02: what the draft's own predictions say about its wiring and its quality."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eagle3lib.findings.capture_rules import _difference, _ids_remedy
from eagle3lib.findings.finding import Edit, Finding
from eagle3lib.measuring.rates import Rate
from eagle3lib.measuring.wiring_search import GOOD_FIRST, Candidate, Search

#: The draft vocabulary may miss this share of what the target says before it is worth a warning.
MAX_MISSED = 0.05

#: switch -> (kind, the config field that sets it in SGLang, or "" where none does)
_SWITCHES = {
    "shift": ("align.shift", ""),
    "norm_before_fc": ("norm.before_fc", "norm_before_fc"),
    "fc_norm": ("norm.fc", "fc_norm"),
    "norm_before_residual": ("norm.before_residual", ""),
    "norm_output": ("norm.output", "norm_output"),
    "norm_before_head": ("norm.head", ""),
    "rope_theta": ("rope.theta", "rope_theta"),
    "rope_scaling": ("rope.scaling", "rope_scaling"),
    "window": ("attention.window", ""),
    "attention_bias": ("arch.unsupported", ""),
    "qk_norm": ("arch.unsupported", ""),
    "later_norm": ("arch.unsupported", ""),
    "d2t": ("vocab.map", ""),
    "head": ("vocab.tied_head", "tie_word_embeddings"),
    "embedding": ("embed.replaced", ""),
}


def search_findings(search: Search, *, family: str, layers: int, version: str) -> list[Finding]:
    """Wiring and model judged by the search; silent where the configured wiring is as good as any.

    ``family``, ``layers``, ``version``: of the target and the engine, for the ids in the remedy.
    """
    better = search.better
    found = [] if better is None else list(_changes(search, better, family, layers, version))
    if search.answer in ("model", "both"):
        found.append(_undertrained(better or search.as_configured))
    return found


def _changes(search: Search, better: Candidate, family: str, layers: int, version: str) -> Iterator[Finding]:
    here = search.as_configured
    low, high = better.gain_ci or (better.gain, better.gain)
    evidence = (
        f"With {better.change} the draft's predicted accept length is {better.accept_length.value:.3f}, as "
        f"configured {here.accept_length.value:.3f}: a gain of {better.gain:.3f} ({low:.3f} to {high:.3f}); "
        f"first position right {better.conditional_depth1.value:.0%} against {here.conditional_depth1.value:.0%}."
    )
    for switch, (was, wanted) in search.configured.differences(better.wiring).items():
        if switch == "boundaries":
            kind = _difference(list(was), list(wanted), layers) or "aux.order"
            remedy, edits = ("", ()) if kind == "aux.order" else _ids_remedy(wanted, family, layers, version)
            remedy = remedy or f"Permute the column blocks of fc.weight to boundaries {sorted(wanted)}."
            subject, lost = "eagle_config.eagle_aux_hidden_state_layer_ids", "fc reads states it was not trained on"
        else:
            kind, field = _SWITCHES[switch]
            remedy, edits = _switch_remedy(field, switch, wanted)
            subject, lost = field or switch, f"the draft was trained with {switch} = {wanted}, not {was}"
        consequence = (
            f"{lost[0].upper()}{lost[1:]}: it accepts {better.gain:.2f} tokens a verify step less than it can."
        )
        yield Finding(kind, "error", subject, evidence, consequence, remedy, edits)


def _switch_remedy(field: str, switch: str, wanted: Any) -> tuple[str, tuple[Edit, ...]]:
    if not field:
        return f"SGLang has no field for {switch}: change the engine's model code, or train the draft again.", ()
    value = wanted == "tied" if switch == "head" else dict(wanted) if switch == "rope_scaling" and wanted else wanted
    return f"Set {field} to {value} in the draft's config.json.", (Edit("draft config", field, value),)


def _undertrained(best: Candidate) -> Finding:
    first = best.conditional_depth1
    return Finding(
        "quality.undertrained",
        "warning",
        "the draft's weights",
        f"Under the best wiring tried ({best.change}) the first position is right in {_share(first)} of all "
        f"starts, below {GOOD_FIRST:.0%}.",
        "No setting of the engine can make this draft accept more than it predicts.",
        "Train longer or on more varied text of the kind that is served; then run this notebook again.",
    )


def coverage_findings(coverage: Rate) -> list[Finding]:
    """``vocab.coverage``: a warning where more than 5 % are missed beyond the interval, else a note."""
    if coverage.value is None or coverage.value >= 1:
        return []
    surely = coverage.ci[1] if coverage.ci else coverage.value
    missed = f"{1 - coverage.value:.1%} of the target's {coverage.denominator:g} tokens"
    return [
        Finding(
            "vocab.coverage",
            "warning" if surely < 1 - MAX_MISSED else "note",
            "the draft vocabulary",
            f"It lacks {missed}; coverage {_share(coverage)}.",
            "A token outside the draft vocabulary is never proposed: it ends every chain that reaches it.",
            "Choose the draft vocabulary from text of the kind that is served, or make it larger.",
        )
    ]


def _share(rate: Rate) -> str:
    interval = f", 95 % interval {rate.ci[0]:.1%} to {rate.ci[1]:.1%}" if rate.ci else ""
    return f"{rate.value:.1%} ({rate.numerator:g} of {rate.denominator:g}{interval})"
