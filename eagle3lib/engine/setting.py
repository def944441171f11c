"""The speculative setting that notebook 03 compares with: a report's own, else what was requested or is served."""

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
from eagle3lib.reading.setting import Setting
from eagle3lib.reading.target_config import TargetConfig

#: What an offline prediction assumes where neither parameters nor flags say anything.
USUAL_STEPS = 3


def requested_setting(
    launch: str, target: str | Path, engine: str, num_steps: int, topk: int, num_draft_tokens: int
) -> Setting:
    """What the parameters say (0: nothing), else the launch flags after the server's own changes.

    A chain (topk 1) always verifies ``num_steps + 1`` tokens, whatever was requested.
    """
    architecture = TargetConfig.open(target).architecture if target else ""
    served = speculation(Launch.parse(launch), architecture, engine_version(engine)[0])
    steps = num_steps or served.num_steps
    branches = topk or served.topk or (1 if num_steps else None)
    tokens = num_draft_tokens or served.num_draft_tokens
    return Setting(steps, branches, steps + 1 if steps and branches == 1 else tokens)


def with_settings(reports: Sequence[EngineReport], requested: Setting, engine: str) -> list[EngineReport]:
    """Each report with the setting it was served under: that of its own flags where it has them."""

    def own(report: EngineReport) -> Setting | None:
        launch = Launch(MappingProxyType({}), report.flags, "server_info", "sglang")
        try:
            served = speculation(launch, "", engine_version(engine)[0])
        except InputError:  # flags that are no numbers
            return None
        return Setting(served.num_steps, served.topk, served.num_draft_tokens) if served.num_steps else None

    return [replace(report, setting=(report.flags and own(report)) or requested) for report in reports]


def common_setting(requested: Setting, reports: Sequence[EngineReport]) -> Setting:
    """``requested``, or where nothing was requested the one setting that all reports ran under."""
    ran = {report.setting for report in reports if not report.unreadable}
    return ran.pop() if requested == Setting() and len(ran) == 1 else requested


def assumed_setting(setting: Setting) -> Setting:
    """``setting`` with a chain of ``USUAL_STEPS`` in the place of what nobody says."""
    steps = setting.num_steps or USUAL_STEPS
    return Setting(steps, setting.topk or 1, setting.num_draft_tokens or steps + 1)
