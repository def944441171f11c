"""Notebooks 01, 02 and 06: the engine beside the trainer, the draft beside its training, the records side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import median
from typing import TYPE_CHECKING, Any

from eagle3lib.findings.wiring_rules import overlap
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.accuracy import DEFINITIONS
from eagle3lib.reporting.tables import NOTHING, SIGNS, facts, named, table, text

if TYPE_CHECKING:
    from IPython.display import Pretty
    from pandas.io.formats.style import Styler

    from eagle3lib.findings.inspection import Inspection
    from eagle3lib.findings.verdict import Verdict
    from eagle3lib.maths.trace import Stage
    from eagle3lib.measuring.accuracy import Evaluation
    from eagle3lib.measuring.survey import Survey
    from eagle3lib.measuring.wiring_search import Search
    from eagle3lib.reading.training_reports import TrainingReport

#: What each answer of notebook 02 means.
ANSWERS = {
    "sound": "Sound: the draft predicts well, and no other wiring tried suits it better.",
    "wiring": "The wiring is at fault: the same weights predict well under another wiring.",
    "model": "The model is at fault: the draft predicts poorly, and no wiring tried helps.",
    "both": "Both: another wiring suits the weights better, and even so the draft predicts poorly.",
    "undecided": "Undecided: too few samples to tell, or the wirings were not searched.",
}


def side_by_side(inspection: Inspection) -> Styler:
    """What the engine will do, beside what the draft was trained for; disagreements are marked."""
    rows = []
    for name, engine, trained in _pairs(inspection):
        differs = engine is not None and trained is not None and engine != trained
        rows.append({"": name, "engine": engine, "trained": trained, " ": "✖ differs" if differs else ""})
    rows += [{"": "silently ignored", "engine": name} for name in inspection.served.ignored]
    rows += [{"": "fails at start", "engine": refusal.text} for refusal in inspection.served.crashes]
    rows += [{"": "note", "engine": words} for words in inspection.notes]
    rows += [{"": "not looked at", "engine": words} for words in inspection.missing]
    return table(rows)


def _pairs(inspection: Inspection) -> list[tuple[str, Any, Any]]:
    served, trained, speculation = inspection.served, inspection.trained, inspection.served.speculation
    changed = {key: f" ({why})" for key, why in speculation.changed.items()}
    flags = named(speculation, "algorithm", "num_steps", "topk", "num_draft_tokens")
    pairs: list[tuple[str, Any, Any]] = [
        (name, None if value is None else f"{value}{changed.get(name, '')}", None) for name, value in flags.items()
    ]
    boundaries = None if trained.boundaries is None else list(trained.boundaries)
    captured = None if served.captured is None else list(served.captured.boundaries)
    pairs.append(("boundaries into fc", captured, boundaries))
    for name in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output", "rope_theta", "window"):
        engine = None if served.wiring is None else getattr(served.wiring, name)
        pairs.append((name, engine, getattr(trained.switches, name)))
    return [*pairs, ("head", served.head, trained.switches.head), ("embedding", served.embedding, None)]


def effect(inspection: Inspection) -> Styler:
    """What these ids and flags come to, in a few lines: the static twin of the form."""
    served, speculation = inspection.served, inspection.served.speculation
    rows = [
        {"": "ids in the config", "value": inspection.draft.aux_ids},
        {"": "boundaries captured", "value": inspection.captured_boundaries},
        {"": "boundaries trained on", "value": inspection.trained.boundaries},
        {"": "num_steps / topk / num_draft_tokens",
         "value": f"{speculation.num_steps} / {speculation.topk} / {speculation.num_draft_tokens}"},
        {"": "longest accept length possible, bonus in", "value": (speculation.num_steps or 0) + 1},
        *({"": "fails at start", "value": refusal.text} for refusal in served.crashes),
        *({"": SIGNS[f.severity], "value": f"{f.kind}: {f.evidence}"} for f in inspection.findings),
    ]  # fmt: skip
    return table(rows)


def inspection_results(inspection: Inspection, corrected: str | None) -> dict[str, Any]:
    """Notebook 01's ``results``: effective values of the engine, and what weights and config expect."""
    served, speculation, trained = inspection.served, inspection.served.speculation, inspection.trained
    captured = served.captured
    return {
        "engine": {
            "version": served.version,
            **named(speculation, "algorithm", "num_steps", "topk", "num_draft_tokens", "changed"),
            "captured_boundaries": None if captured is None else captured.boundaries,
            "captured_ids": None if captured is None else captured.pairs,
            "default_layers": None if captured is None else captured.default,
            **named(served, "norms", "residual"),
            "rope_theta": served.rope.theta,
            "rope_scaling": served.rope.scaling,
            **named(served, "window", "head", "embedding", "context", "ignored"),
            "fails_at_start": [refusal.text for refusal in served.crashes],
        },
        "trained": {
            **named(trained, "boundaries", "candidates", "reason"),
            **named(trained.switches, "norm_before_residual", "norm_output", "norm_before_fc", "fc_norm"),
            **named(trained.switches, "rope_theta", "rope_scaling", "window"),
        },
        "dialect": inspection.draft.dialect,
        "assumed": (*inspection.draft.assumed, *inspection.notes),
        "missing": inspection.missing,
        "corrected_config": corrected,
    }


def wiring(found: Wiring, words: str) -> Styler:
    """The wiring that is measured, where it departs from classic EAGLE-3; ``words`` say which it is."""
    different = {name: here for name, (_, here) in Wiring(found.boundaries).differences(found).items()}
    same = [each.name for each in fields(found) if each.name not in {"boundaries", *different}]
    order = {"boundaries, in the order of fc's column blocks": found.boundaries}
    return facts({"measured": words, **order, **different, "as in classic EAGLE-3": same})


def trace(stages: Sequence[Stage]) -> Styler:
    """One position through the draft; what is proposed is a token id, the other values are a row's first."""
    rows = [named(stage, "depth", "name", "shape", "rms", "first", "note") for stage in stages]
    for row in rows:
        row["first"] = ", ".join(f"{value:.{9 if row['name'] == 'proposed' else 3}g}" for value in row["first"])
    return table(rows)


def training(reports: Sequence[TrainingReport], evaluation: Evaluation) -> Styler:
    """What is measured here under each trainer's own definition, and what training reported, like beside like."""
    reported = {f"{report.trainer} {report.metric}": report for report in reports}
    measured = {name: [rate.value for rate in rates] for name, rates in evaluation.trainers().items()}
    rows = [
        {
            "definition": name,
            "what it counts": DEFINITIONS[name] if name in measured else reported[name].definition,
            "measured here": measured.get(name),
            "training reported": reported[name].values if name in reported else None,
        }
        for name in {**measured, **reported}
    ]
    return table(rows, "Nothing says what the target would say: no last state is at hand, and no report was given.")


def traffic(own: Evaluation, samples: Survey, served: Evaluation | None, other: Survey | None) -> Styler:
    """The samples beside recorded traffic, and whether their intervals overlap."""
    if served is None or other is None:
        return table([], "No traffic was given.")
    steps = len(own.depths())
    pairs = [(f"depth {mine.depth}, conditional", mine.conditional, theirs.conditional)
             for mine, theirs in zip(own.depths(), served.depths(), strict=True)]  # fmt: skip
    pairs.append(("coverage of the draft vocabulary", samples.coverage, other.coverage))
    pairs.append((f"accept length, {steps} steps", own.accept_length(steps), served.accept_length(steps)))
    rows = [{"": name, "samples": mine, "traffic": theirs, "intervals": overlap(mine, theirs)}
            for name, mine, theirs in pairs]  # fmt: skip
    spans = [("prompt, tokens (least / median / most)", samples.prompts, other.prompts),
             ("in all, tokens", samples.lengths, other.lengths)]  # fmt: skip
    spans += [(f"boundary {k}, RMS of a typical row", samples.norms[k], other.norms.get(k, ())) for k in samples.norms]
    return table(rows + [{"": name, "samples": _middle(a), "traffic": _middle(b)} for name, a, b in spans])


def _middle(values: Sequence[float]) -> str:
    return f"{min(values):.4g} / {median(values):.4g} / {max(values):.4g}" if values else NOTHING


def answer(found: str, search: Search | None, measured: str, worse_on_traffic: bool) -> Pretty:
    """Notebook 02's answer in one sentence, with the numbers it rests on; ``measured``: which wiring that was."""
    summary = ANSWERS[found]
    if search is None:
        return text(summary)
    if worse_on_traffic and search.answer in ("sound", "wiring"):
        on_samples = ANSWERS[{"model": "sound", "both": "wiring"}.get(found, found)]
        summary = f"{on_samples} But traffic is predicted worse than the samples: it is other text, or longer."
    here, better = search.as_configured, search.better
    top = max(search.candidates, key=lambda each: each.accept_length.value or 0)
    if better:
        compared = f"with {better.change} {better.accept_length.value:.2f}."
    elif top is here:
        compared = f"of {search.passes} tried none is shown to be better."
    else:
        compared = (
            f"of {search.passes} tried none is shown to be better: the highest, {top.change}, has "
            f"{top.accept_length.value:.2f}, which is too near to tell."
        )
    summary += (
        f" {measured[0].upper()}{measured[1:]} (boundaries {', '.join(map(str, search.configured.boundaries))}), "
        f"{here.accept_length.value:.2f} tokens a verify step are predicted; {compared}"
    )
    for index in search.harmful_aux_states:
        summary += f" The draft predicts better without aux state {index + 1}: it was trained on none of those given."
    return text(summary)


def headline(verdict: Verdict) -> Pretty:
    """The verdict in two sentences."""
    words = {True: "Healthy.", False: "Not healthy.", None: "Not enough evidence to say."}[verdict.healthy]
    return text(f"{words} {verdict.next_step}")


def evidence(records: Mapping[str, Any], missing: Mapping[str, str]) -> Styler:
    """One row a notebook: its status, and its findings by severity."""
    rows = []
    for stem in sorted({*records, *missing} - {"06_verdict"}):
        found = records[stem]["findings"] if stem in records else []
        by_severity = {name: sum(finding["severity"] == name for finding in found) for name in SIGNS}
        kinds = [finding["kind"] for finding in found if finding["severity"] != "note"]
        status = records[stem]["status"] if stem in records else missing[stem]
        rows.append({"notebook": stem, "status": status, **by_severity, "errors and warnings": kinds})
    return table(rows)
