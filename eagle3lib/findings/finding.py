"""What the workbook says: findings in each notebook, diagnoses in the verdict."""

from __future__ import annotations

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
