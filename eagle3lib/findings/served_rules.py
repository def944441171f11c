"""03: the wiring that responses show, against the one that should have been served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eagle3lib.findings.boundaries import layer_difference
from eagle3lib.findings.finding import Finding
from eagle3lib.findings.wiring_rules import KINDS
from eagle3lib.measuring.served_wiring import ServedWiring
from eagle3lib.reading.draft_config import ENGINE_PLACE

#: No edit goes with it: the config inspected asks for the right thing already.
_ELSEWHERE = (
    "The server runs another config or other code than the one inspected here: compare draft path, overrides and "
    "version in its /server_info."
)


def served_findings(found: ServedWiring, *, layers: int) -> list[Finding]:
    """An error for each switch that was surely served otherwise than configured, a note where one is not sure.

    Silent where the configured wiring may be what was served, or where too little was accepted to say.
    ``layers``: blocks of the target.
    """
    if found.answer in ("as configured", "undecided") or not found.best.decides:
        return []
    if found.answer == "none":
        return [_unexplained(found)]
    return list(_changes(found, layers))


def _changes(found: ServedWiring, layers: int) -> Iterator[Finding]:
    here, best = found.as_configured, found.best
    evidence = (
        f"{found.summary()} The configured wiring predicts {here.exact.numerator} of {here.exact.denominator} "
        f"responses, {here.steps.numerator} of {here.steps.denominator} verify steps."
    )
    for switch, (wanted, was) in found.configured.differences(best.wiring).items():
        possible = list(dict.fromkeys(_said(getattr(fit.wiring, switch)) for fit in found.possible))
        sure = found.answer == "another wiring" and _said(wanted) not in possible
        if switch == "boundaries":
            kind, subject = layer_difference(list(was), list(wanted), layers) or "aux.order", ENGINE_PLACE
        else:
            kind, subject = KINDS[switch], switch
        yield Finding(
            kind, "error" if sure else "note", subject, f"{found.source}: {evidence}",
            f"The engine served {switch} = {' or '.join(possible)}, not {_said(wanted)}: not what is configured."
            if sure else f"{switch} may have been served as {_said(was)}: more responses would tell.",
            _ELSEWHERE,
        )  # fmt: skip


def _unexplained(found: ServedWiring) -> Finding:
    return Finding(
        "acceptance.unexplained", "note", found.source, found.summary(),
        "The engine feeds or reads the draft in a way that no known wiring does, or serves other weights.",
        "Compare the weights, the flags that change acceptance (temperature, thresholds) and a capture (notebook 04).",
    )  # fmt: skip


def _said(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
