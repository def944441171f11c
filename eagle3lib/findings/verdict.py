"""Notebook 06: all records of a run -> what is wrong, how sure, what next.

Every finding of an earlier notebook is evidence for one kind of cause. The confidence of a single finding
follows from its severity; findings of several notebooks agree independently, so that the chance that all of
them are mistaken is the product of their doubts. Causes rank before what merely limits a draft, and both
before symptoms, which say that something is wrong and not what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from eagle3lib.findings.finding import Edit

#: In these families kinds are rival explanations of one thing: what was measured stands, guesses give way.
RIVALS = ("aux", "rope")

#: How far one finding alone is believed: shown to harm, or only likely to.
BELIEF = {"error": 0.9, "warning": 0.5}
#: However many agree, they read the same files.
CERTAIN = 0.99

#: Kinds that say *that* something is wrong: they never rank above a cause that explains them.
SYMPTOMS = ("acceptance", "metric", "cost", "capture")
#: Kinds that cap or lower what a rightly fed draft can gain.
LIMITS = ("flags", "context", "quality", "sampling", "vocab.coverage", "target", "engine")
#: What a rank costs in confidence, so that a doubtful cause does not hide a certain limit.
RANK_COST = (0.0, 0.1, 1.0)

#: The notebooks whose answer can tell a healthy setup from a sick one: files first, then behaviour.
FILES, BEHAVIOUR = "01_config_inspection", ("02_manual_forward", "03_acceptance", "04_capture_diff")


_Found = list[tuple[str, Mapping[str, Any]]]  # findings of one cause, each with its notebook


@dataclass(frozen=True)
class Diagnosis:
    """One cause with all the evidence for it. ``confidence`` is in 0..1; ``notebooks`` say where it showed."""

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
    """``healthy`` is ``None`` where too little was looked at to say."""

    diagnosis: tuple[Diagnosis, ...]
    healthy: bool | None
    next_step: str


def verdict(records: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str]) -> Verdict:
    """The verdict on one run.

    ``records``: by notebook stem, as ``telling.records.read_records`` gives them; ``missing``: for every other
    notebook the reason why it has none.
    """
    by_cause: dict[str, _Found] = {}
    for stem, record in sorted(records.items()):
        for finding in record["findings"]:
            if finding["severity"] in BELIEF:
                by_cause.setdefault(_cause(finding["kind"]), []).append((stem, finding))
    diagnosis = tuple(sorted((_diagnose(found) for found in _without_guesses(by_cause).values()), key=_rank))
    healthy = _healthy(diagnosis, records)
    return Verdict(diagnosis, healthy, _next_step(diagnosis, healthy, missing))


def _without_guesses(by_cause: dict[str, _Found]) -> dict[str, _Found]:
    """Without the causes that are only likely where another kind of the same family is shown."""
    shown = {cause for cause, found in by_cause.items() if any(f["severity"] == "error" for _, f in found)}
    settled = {cause.split(".")[0] for cause in shown} & set(RIVALS)
    return {c: found for c, found in by_cause.items() if c in shown or c.split(".")[0] not in settled}


def _cause(kind: str) -> str:
    """Two dotted parts name a cause; a suffix only refines it."""
    return ".".join(kind.split(".")[:2])


def _diagnose(found: _Found) -> Diagnosis:
    strongest: dict[str, float] = {}  # one vote a notebook: its findings share their evidence
    for stem, finding in found:
        strongest[stem] = max(strongest.get(stem, 0.0), BELIEF[finding["severity"]])
    confidence = 1 - prod(1 - belief for belief in strongest.values())
    _, best = max(found, key=lambda item: (BELIEF[item[1]["severity"]], bool(item[1].get("edits"))))
    return Diagnosis(
        kind=best["kind"],
        confidence=round(min(confidence, CERTAIN), 3),
        subject=best["subject"],
        evidence=" ".join(f"[{stem[:2]}] {finding['evidence']}" for stem, finding in found),
        consequence=best["consequence"],
        remedy=best["remedy"],
        edits=tuple(Edit(**edit) for edit in best.get("edits", ())),
        notebooks=tuple(strongest),
    )


def _rank(diagnosis: Diagnosis) -> float:
    place = 2 if _among(diagnosis.kind, SYMPTOMS) else 1 if _among(diagnosis.kind, LIMITS) else 0
    return RANK_COST[place] - diagnosis.confidence


def _among(kind: str, families: Iterable[str]) -> bool:
    return any(kind == family or kind.startswith(family + ".") for family in families)


def _healthy(diagnosis: tuple[Diagnosis, ...], records: Mapping[str, Mapping[str, Any]]) -> bool | None:
    if diagnosis:
        return False
    behaved = [stem for stem in BEHAVIOUR if stem in records and records[stem]["status"] == "finished"]
    return True if FILES in records and behaved else None


def _next_step(diagnosis: tuple[Diagnosis, ...], healthy: bool | None, missing: Mapping[str, str]) -> str:
    if diagnosis:
        first = diagnosis[0]
        others = len(diagnosis) - 1
        also = f" Then look at the {others} other point{'s' * (others > 1)} below." if others else ""
        return f"{first.kind}: {first.remedy}{also}"
    unseen = [stem for stem in (FILES, *BEHAVIOUR) if stem in missing]
    if healthy:
        looked = f" {', '.join(unseen)} did not run, so that side was not looked at." if unseen else ""
        return f"Nothing to mend: the draft is served as it was trained.{looked}"
    return f"Too little was looked at to say. Run {', '.join(unseen)} with the same run_dir."
