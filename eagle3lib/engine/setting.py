"""The speculative setting that notebook 03 compares with: a report's own, else what was asked or is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from eagle3lib.engine.capture_ids import engine_version
from eagle3lib.engine.speculation import speculation
from eagle3lib.errors import InputError
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.points import Asked
from eagle3lib.reading.target_config import TargetConfig

#: What an offline prediction assumes where neither parameters nor flags say anything.
USUAL_STEPS = 3


def asked_setting(
    launch: str, target: str | Path, engine: str, num_steps: int, topk: int, num_draft_tokens: int
) -> Asked:
    """``(num_steps, topk, num_draft_tokens)``, each ``None`` where nobody says it; 0 stands for not given.

    A chain (topk 1) always verifies ``num_steps + 1`` tokens, whatever was asked.
    """
    architecture = TargetConfig.open(target).architecture if target else ""
    served = speculation(Launch.parse(launch), architecture, engine_version(engine)[0])
    steps = num_steps or served.num_steps
    branches = topk or served.topk or (1 if num_steps else None)
    tokens = num_draft_tokens or served.num_draft_tokens
    return steps, branches, steps + 1 if steps and branches == 1 else tokens


def served_under(reports: Sequence[EngineReport], asked: Asked, engine: str) -> list[EngineReport]:
    """Each report with the setting it was served under: that of its own flags where it has them, else ``asked``."""

    def own(report: EngineReport) -> Asked | None:
        launch = Launch(MappingProxyType({}), report.flags, "server_info", "sglang")
        try:
            served = speculation(launch, "", engine_version(engine)[0])
        except InputError:  # flags that are no numbers
            return None
        return (served.num_steps, served.topk, served.num_draft_tokens) if served.num_steps else None

    return [replace(report, setting=(report.flags and own(report)) or asked) for report in reports]


def agreed(asked: Asked, reports: Sequence[EngineReport]) -> Asked:
    """``asked``, or where nobody asked for anything the one setting that all reports ran under."""
    ran = {report.setting for report in reports if not report.unreadable}
    return ran.pop() if asked == (None, None, None) and len(ran) == 1 else asked
