"""Notebook 06: all records of a run -> what is wrong, how sure, what next.

Every finding of an earlier notebook is evidence for one kind of cause. The confidence of a single finding
follows from its severity; findings of several notebooks agree independently, so that the chance that all of
them are mistaken is the product of their doubts. Causes rank before what merely limits a draft, and both
before symptoms, which show that something is wrong and not what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from eagle3lib.findings.catalogue import about, kind_of
from eagle3lib.findings.finding import Edit

#: What is left of a suspicion from files alone that 02 refutes, and what to do about it.
REFUTED = 0.1
LEAVE = (
    "Change nothing for this alone: notebook 02 measured the draft wired just as it is served, and it predicts well. "
    "The config describes another training than these weights show."
)
#: The reason of a notebook that was not run, in ``reporting.records.read_records``.
NO_RECORD = "no record"

#: How far one finding alone is believed: shown to harm, or only likely to.
BELIEF = {"error": 0.9, "warning": 0.5}
#: However many agree, they read the same files.
CERTAIN = 0.99

#: What a rank costs in confidence, so that a doubtful cause does not hide a certain limit.
RANK_COST = {"cause": 0.0, "limit": 0.1, "symptom": 1.0}

#: How far below a prediction on other text a served accept length may lie before it counts against the draft.
OTHER_TEXT = 0.2

#: The notebooks that can show a setup to be healthy: files first, then behaviour.
FILES, BEHAVIOUR = "01_config_inspection", ("02_manual_forward", "03_acceptance", "04_capture_diff")


_Records = Mapping[str, Mapping[str, Any]]
_Found = list[tuple[str, Mapping[str, Any]]]  # findings of one cause, each with its notebook


@dataclass(frozen=True)
class Diagnosis:
    """One cause with all the evidence for it. ``confidence`` is in 0..1; ``notebooks``: where it was found."""

    kind: str
    confidence: float
    subject: str
    evidence: str
    consequence: str
    remedy: str
    edits: tuple[Edit, ...]
    notebooks: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """``healthy`` is ``None`` where too little was looked at to decide."""

    diagnosis: tuple[Diagnosis, ...]
    healthy: bool | None
    next_step: str


def verdict(records: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str]) -> Verdict:
    """The verdict on one run.

    ``records``: by notebook stem, as ``reporting.records.read_records`` gives them; ``missing``: for every other
    notebook the reason why it has none.
    """
    by_cause: dict[str, _Found] = {}
    for stem, record in sorted(records.items()):
        for finding in record["findings"]:
            if finding["severity"] in BELIEF:
                by_cause.setdefault(kind_of(finding["kind"]), []).append((stem, finding))
    refuted = _refuted(by_cause, records)
    causes = _without_guesses(by_cause)
    diagnosis = tuple(sorted((_diagnose(found, cause in refuted) for cause, found in causes.items()), key=_rank))
    healthy = _healthy(diagnosis, records)
    if healthy and any(reason != NO_RECORD for reason in missing.values()):
        healthy = None  # a record that cannot be read may have held anything
    return Verdict(diagnosis, healthy, _next_step(diagnosis, healthy, records, missing))


def _refuted(by_cause: dict[str, _Found], records: _Records) -> set[str]:
    """Causes that files alone suggest, where 02 measured that very wiring and found it sound."""
    engine, offline = _results(records, FILES).get("engine"), _results(records, BEHAVIOUR[0])
    starts = isinstance(engine, Mapping) and not engine.get("fails_at_start")
    if not starts or (offline.get("answer"), offline.get("measured")) != ("sound", "as configured"):
        return set()
    alone = {cause for cause, found in by_cause.items() if {stem for stem, _ in found} == {FILES}}
    return {cause for cause in alone if about(cause).refutable}


def _without_guesses(by_cause: dict[str, _Found]) -> dict[str, _Found]:
    """Without the causes that are only likely where another one that explains the same thing is shown."""
    shown = {cause for cause, found in by_cause.items() if any(f["severity"] == "error" for _, f in found)}
    explained = {about(cause).explains for cause in shown} - {""}
    return {c: found for c, found in by_cause.items() if c in shown or about(c).explains not in explained}


def _diagnose(found: _Found, refuted: bool) -> Diagnosis:
    strongest: dict[str, float] = {}  # one vote a notebook: its findings share their evidence
    for stem, finding in found:
        strongest[stem] = max(strongest.get(stem, 0.0), BELIEF[finding["severity"]])
    confidence = min(1 - prod(1 - belief for belief in strongest.values()), CERTAIN)
    _, best = max(found, key=lambda item: (BELIEF[item[1]["severity"]], bool(item[1].get("edits"))))
    whole = [each for each in best.get("edits", ()) if {"where", "key"} <= each.keys()]
    edits = tuple(Edit(each["where"], each["key"], each.get("value")) for each in whole)
    return Diagnosis(
        kind=best["kind"],
        confidence=REFUTED if refuted else round(confidence, 3),
        subject=best["subject"],
        evidence=" ".join(f"[{stem[:2]}] {finding['evidence']}" for stem, finding in found),
        consequence=best["consequence"],
        remedy=LEAVE if refuted else best["remedy"],
        edits=() if refuted else edits,
        notebooks=tuple(strongest),
    )


def _rank(diagnosis: Diagnosis) -> float:
    return RANK_COST[about(diagnosis.kind).role] - diagnosis.confidence


def _healthy(diagnosis: tuple[Diagnosis, ...], records: _Records) -> bool | None:
    """Healthy needs both, and nothing against it: files that agree, and a draft that was seen to behave."""
    if diagnosis:
        return None if all(entry.confidence <= REFUTED for entry in diagnosis) else False
    files = FILES in records and records[FILES]["status"] == "finished"
    return True if files and _conclusive(records) and not _doubts(records) else None


def _conclusive(records: _Records) -> list[str]:
    """The records that show that the draft behaves: predicts well, is accepted, is fed what it was trained on."""
    return [stem for stem in BEHAVIOUR if _behaves(stem, _results(records, stem))]


def _behaves(stem: str, results: Mapping[str, Any]) -> bool:
    """What an engine accepted shows it only beside what these weights do: no number is good in itself."""
    match stem[:2]:
        case "02":
            return results.get("answer") == "sound"
        case "03":
            kinds = [source.get("kind") for source in entries(results, "sources")]
            return "engine" in kinds and ("offline" in kinds or bool(results.get("agreement")))
        case "04":
            pairs = [(s.get("boundary"), s.get("expected_boundary")) for s in entries(results, "streams")]
            fed = bool(pairs) and all(found is not None and found == wanted for found, wanted in pairs)
            # Held against the config alone it shows that the engine obeys it, not that the weights were trained so.
            shown = "config" not in str(results.get("expected_from") or "")
            return fed and shown and not results.get("first_divergence")
    return False


def _doubts(records: _Records) -> list[str]:
    """What no finding reports and a healthy draft would not show."""
    offline, served = (_results(records, stem) for stem in BEHAVIOUR[:2])
    doubts = []
    if (answer := offline.get("answer")) in ("wiring", "model", "both"):
        doubts.append(f"02 answers {answer!r}: the draft does not predict well even offline")
    lengths = [(source.get("kind"), number(source.get("accept_length"))) for source in entries(served, "sources")]
    predicted = [length for kind, length in lengths if kind == "offline" and length]
    by_steps = offline.get("predicted_accept_length")
    if isinstance(by_steps, Mapping) and (length := number(by_steps.get(str(served.get("num_steps"))))):
        predicted.append(length)
    for kind, length in lengths:
        if kind == "engine" and length and predicted and length < (1 - OTHER_TEXT) * min(predicted):
            doubts.append(f"03 counts accept length {length:.2f} where {min(predicted):.2f} was predicted")
    return doubts


def _results(records: _Records, stem: str) -> Mapping[str, Any]:
    """What a notebook found, empty where its record has no such thing."""
    results = records.get(stem, {}).get("results")
    return results if isinstance(results, Mapping) else {}


def entries(results: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of a list in the results, none where a record of another making has no such list."""
    found = results.get(name)
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


def number(value: Any) -> float | None:
    """A rate's value, or a bare number."""
    value = value.get("value") if isinstance(value, Mapping) else value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _next_step(
    diagnosis: tuple[Diagnosis, ...], healthy: bool | None, records: _Records, missing: Mapping[str, str]
) -> str:
    unseen = ", ".join(stem for stem in (FILES, *BEHAVIOUR) if stem in missing)
    if diagnosis:
        first, *others = diagnosis
        places = {"draft config": "the draft's config.json", "launch": "the launch line"}
        edited = [place for where, place in places.items() if any(edit.where == where for edit in first.edits)]
        do = f" Edit {' and '.join(edited)}, then start the server anew." if edited else ""
        also = f" Then look at {', '.join(other.kind for other in others)}." if others else ""
        return f"{first.kind}: {first.remedy}{do}{also}"
    conclusive = _conclusive(records)
    if healthy:
        offline_only = conclusive == [BEHAVIOUR[0]]
        why = "the draft predicts well and its files agree" if offline_only else "the draft is served as it was trained"
        return f"Nothing to mend: {why}." + (f" Not looked at: {unseen}." if unseen else "")
    sentences = ["Too little was looked at to decide.", *(f"{doubt}." for doubt in _doubts(records))]
    kinds = [source.get("kind") for source in entries(_results(records, BEHAVIOUR[1]), "sources")]
    if "engine" in kinds and BEHAVIOUR[1] not in conclusive:
        sentences.append("What the engine accepted has no prediction beside it: give 03 samples, draft and target.")
    if tried := ", ".join(stem for stem in (FILES, *BEHAVIOUR) if stem in records):
        sentences.append(f"{tried} ran and did not settle it: give them more samples or what they lacked.")
    if unseen:
        sentences.append(f"Run {unseen} with the same run_dir.")
    return " ".join(sentences)
