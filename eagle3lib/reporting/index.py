"""The index of a batch: one row a run, from its records; the verdicts lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from eagle3lib.findings.catalogue import is_symptom
from eagle3lib.findings.verdict import entries, number
from eagle3lib.reading.files import write_text
from eagle3lib.reporting.pages import TEMPLATE, confine, css, mask_page
from eagle3lib.reporting.privacy import mask
from eagle3lib.reporting.records import read_records

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of one notebook of one run."""

    stem: str
    state: str = "waiting"  # waiting, finished, partial, failed
    reason: str = ""  # one line: why it failed, or what part is missing


def write_index(out: Path, title: str, runs: Sequence[tuple[str, Sequence[Outcome]]]) -> None:
    """Write ``<out>/index.html`` from the records in ``<out>/<run name>/``; ``runs`` in the plan's order."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    rows = [run_summary(out / name, name, outcomes) for name, outcomes in runs]
    environment = Environment(loader=FileSystemLoader(TEMPLATE), autoescape=True, undefined=StrictUndefined)
    html = environment.get_template("batch.html.j2").render(
        title=title, css=Markup(css()), runs=mask(rows), summary=_summary(rows),
        troubles=mask([{"run": name, "stem": outcome.stem, "reason": outcome.reason}
                       for name, outcomes in runs for outcome in outcomes if outcome.reason]),
    )  # fmt: skip
    write_text(out / "index.html", mask_page(confine(html)))


def run_summary(folder: Path, name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One row of the index, in words; a missing or odd record leaves its cell empty, never guessed."""
    records, _ = read_records(folder)
    # Only what this plan ran and finished: a record of some other day is not this run's result.
    fresh = {outcome.stem for outcome in outcomes if outcome.state in ("finished", "partial")}
    results = {stem: record["results"] for stem, record in records.items() if stem in fresh}
    verdict = results.get("06_verdict", {})
    diagnosis = entries(verdict, "diagnosis")
    headline, tone = _headline(verdict, diagnosis)
    states = [outcome.state for outcome in outcomes]
    worst = next((state for state in ("failed", "waiting", "partial") if state in states), "finished")
    return {
        "name": name,
        "state": worst,
        "headline": headline,
        "tone": tone,
        "causes": [{"kind": str(cause.get("kind")), "confidence": _percent(cause)} for cause in diagnosis[:4]],
        "served": served(results.get("03_acceptance", {})),
        "predicted": predicted(results.get("02_manual_forward", {}), _steps(results)),
        "next_step": str(verdict.get("next_step") or ""),
        "pages": [_page(folder, name, outcome) for outcome in outcomes],
    }


def served(acceptance: Record) -> list[tuple[str, str]]:
    """Length and words: the engine's own accept length, from 03's sources, and the one predicted for these requests."""
    sources = [(str(source.get("source")), source) for source in entries(acceptance, "sources")]
    lengths = {name: number(source.get("accept_length")) for name, source in sources}
    found = []
    for name, source in sources:
        if source.get("kind") == "engine" and lengths[name] is not None:
            beside = lengths.get(f"predicted for {name}")
            words = "" if beside is None else f"predicted for these requests: {beside:.2f}"
            found.append((f"{lengths[name]:.2f}", words))
    return found[:2]


def predicted(forward: Record, steps: int | None) -> list[tuple[str, str]]:
    """Length and words: the draft offline as configured, and with the wiring that suits it best."""
    found = []
    lengths = forward.get("predicted_accept_length")
    if isinstance(lengths, Mapping) and lengths:
        key = str(steps) if str(steps) in lengths else max(lengths, key=lambda text: (len(text), text))
        found.append((number(lengths[key]), f"on the samples, as configured, {key} step{'s' * (key != '1')}"))
    best = next(iter(entries(forward, "wirings")), {})
    if best.get("change") not in (None, "as configured"):
        found.append((number(best.get("accept_length")), f"on the samples, with {best['change']}"))
    return [(f"{length:.2f}", words) for length, words in found if length is not None]


def _steps(results: Mapping[str, Record]) -> int | None:
    engine = results.get("01_config_inspection", {}).get("engine")
    return engine.get("num_steps") if isinstance(engine, Mapping) else None


def _headline(verdict: Record, diagnosis: Sequence[Record]) -> tuple[str, str]:
    if not verdict:
        return "no verdict", "unsure"
    if verdict.get("healthy") is True:
        return "healthy", "good"
    if diagnosis and verdict.get("healthy", False) is None:
        return "a doubt that notebook 02 refutes", "unsure"
    if diagnosis:
        symptoms = sum(is_symptom(str(entry.get("kind"))) for entry in diagnosis)
        counts = {"cause": len(diagnosis) - symptoms, "symptom": symptoms}
        named = [f"{count} {word}{'s' * (count > 1)}" for word, count in counts.items() if count]
        return f"{' and '.join(named)} found", "bad"
    if verdict.get("healthy") is False:
        return "not healthy, cause unknown", "bad"
    return "not enough evidence", "unsure"


def _percent(cause: Record) -> str:
    value = number(cause.get("confidence"))
    return "" if value is None else f"{100 * value:.0f} %"


def _page(folder: Path, name: str, outcome: Outcome) -> dict[str, str]:
    there = (folder / f"{outcome.stem}.html").is_file()
    return {
        "number": outcome.stem[:2], "stem": outcome.stem, "state": outcome.state,
        "href": f"{quote(name)}/{outcome.stem}.html" if there and outcome.state != "waiting" else "",
    }  # fmt: skip


def _summary(rows: Sequence[Mapping[str, Any]]) -> str:
    counts = {
        "healthy": sum(row["tone"] == "good" for row in rows),
        "with a diagnosis": sum(row["tone"] == "bad" for row in rows),
        "with a failed notebook": sum(row["state"] == "failed" for row in rows),
        "still to run": sum(row["state"] == "waiting" for row in rows),
    }
    parts = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    return f"{len(rows)} run{'s' * (len(rows) != 1)}" + (f": {parts}." if parts else ".")
