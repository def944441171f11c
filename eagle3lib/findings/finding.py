"""What a notebook reports: findings, the edits that cure them, and how evidence writes intervals and lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Edit:
    """One change that a remedy asks for, in a form a program can apply.

    ``where`` is ``"draft config"`` (``key`` a dotted path in config.json) or ``"launch"`` (``key`` a flag
    with its dashes). ``value`` is JSON; ``None`` removes the key.
    """

    where: Literal["draft config", "launch"]
    key: str
    value: Any


@dataclass(frozen=True)
class Finding:
    """A named fact with its evidence, what follows from it and the exact change that cures it.

    ``error``: shown to harm; ``warning``: likely to harm, not shown; ``note``: harms nothing now.
    """

    kind: str
    severity: Severity
    subject: str
    evidence: str
    consequence: str
    remedy: str
    edits: tuple[Edit, ...] = field(default=())


def by_severity(findings: list[Finding]) -> list[Finding]:
    """Errors first, then warnings, then notes; stable within each."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def interval(ci: tuple[float, float] | None, form: str = ".2f") -> str:
    """An interval as it follows its value in evidence, such as " (1.20 to 1.31)"; "" where there is none."""
    return f" ({ci[0]:{form}} to {ci[1]:{form}})" if ci else ""


def some(names: Sequence[str], most: int = 6) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
