"""The catalogue of kinds: what each finding means, what follows from it and what to do (``catalogue.yaml``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Literal

import yaml
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from eagle3lib.findings.finding import Edit, Finding, Severity


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Entry:
    """One kind of finding, or one case of it. The fields are described at the head of ``catalogue.yaml``."""

    kind: str
    case: str
    title: str
    role: Literal["cause", "limit", "symptom"]
    severity: Severity
    meaning: str
    consequence: str
    source: str
    remedy: str = ""
    explains: str = ""
    refutable: bool = False
    switches: tuple[str, ...] = ()


@cache
def catalogue() -> Mapping[tuple[str, str], Entry]:
    """Every entry by kind and case; the case "" is the kind itself, and the others hold only what differs from it."""
    text = resources.files(__package__).joinpath("catalogue.yaml").read_text(encoding="utf-8")
    entries = {}
    for kind, fields in yaml.safe_load(text).items():
        cases = {"": {}, **fields.pop("cases", {})}
        entries |= {(kind, case): Entry(kind=kind, case=case, **{**fields, **own}) for case, own in cases.items()}
    return entries


def entry(kind: str, case: str = "") -> Entry | None:
    """The entry of a kind; a suffix after its second dot is a case. ``None`` for a kind that is not in the catalogue.

    Raises:
        KeyError: the kind has no such case.
    """
    name, entries = kind_of(kind), catalogue()
    if case:
        return entries[name, case]
    return entries.get((name, kind[len(name) + 1 :])) or entries.get((name, ""))


def kind_of(kind: str) -> str:
    """Two dotted parts name a kind; a suffix after them is a case."""
    return ".".join(kind.split(".")[:2])


def kind_of_switch(switch: str) -> str:
    """The kind that names a difference in one switch of ``maths.wiring.Wiring``."""
    return next(known.kind for known in catalogue().values() if switch in known.switches)


def about(kind: str) -> Entry:
    """As :func:`entry`; a kind that is not in the catalogue, as a record of another version may hold, is a cause."""
    return entry(kind) or Entry(kind, "", "", "cause", "error", "", "", "")


def is_symptom(kind: str) -> bool:
    """It shows that something is wrong, and not what."""
    return about(kind).role == "symptom"


def make_finding(
    kind: str, subject: str, evidence: str, *, case: str = "", severity: Severity | None = None,
    consequence: str = "", remedy: str = "", edits: Iterable[Edit] = (),
) -> Finding:  # fmt: skip
    """A finding of a kind in the catalogue, which fills in whatever is not given.

    Raises:
        KeyError: the catalogue has no such kind or case.
    """
    known = entry(kind, case)
    if known is None:
        raise KeyError(kind)
    severity, consequence = severity or known.severity, consequence or known.consequence
    return Finding(kind, severity, subject, evidence, consequence, remedy or known.remedy, tuple(edits))


def catalogue_table() -> list[dict[str, str]]:
    """Every entry as a row, for notebook 01."""
    names = ("kind", "case", "severity", "role", "meaning", "consequence", "remedy", "source")
    return [{name: getattr(known, name) for name in names} for known in catalogue().values()]


def markdown() -> str:
    """The catalogue as the page ``docs/findings.md``."""
    head = (
        "Written by `make docs` from `eagle3lib/findings/catalogue.yaml`. A *cause* explains a loss of acceptance, a "
        "*limit* caps what a rightly fed draft can gain, a *symptom* shows that something is wrong and not what."
    )
    lines = ["# Kinds of finding", "", head]
    for (kind, case), known in catalogue().items():
        lines += ["", f"### {kind}: {case}" if case else f"## {kind}: {known.title}", ""]
        lines += [f"*{known.severity}, {known.role}.* {known.meaning}", "", f"- Consequence: {known.consequence}"]
        lines += [f"- Remedy: {known.remedy or 'given by the finding, from its numbers.'}"]
        lines += [f"- Source: {known.source}"] if not case or known.source != catalogue()[kind, ""].source else []
    return "\n".join(lines) + "\n"
