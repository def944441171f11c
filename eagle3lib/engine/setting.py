"""The speculative setting that notebook 03 compares with: what was asked there, else what the server runs."""

from __future__ import annotations

from pathlib import Path

from eagle3lib.engine.capture_ids import engine_version
from eagle3lib.engine.speculation import speculation
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.target_config import TargetConfig

#: What an offline prediction assumes where neither parameters nor flags say anything.
USUAL_STEPS = 3


def asked_setting(
    launch: str, target: str | Path, engine: str, num_steps: int, topk: int, num_draft_tokens: int
) -> tuple[int | None, int | None, int | None]:
    """``(num_steps, topk, num_draft_tokens)``, each ``None`` where nobody says it; 0 stands for not given.

    A chain (topk 1) always verifies ``num_steps + 1`` tokens, whatever was asked.
    """
    architecture = TargetConfig.open(target).architecture if target else ""
    served = speculation(Launch.parse(launch), architecture, engine_version(engine)[0])
    steps = num_steps or served.num_steps
    branches = topk or served.topk or (1 if num_steps else None)
    tokens = num_draft_tokens or served.num_draft_tokens
    return steps, branches, steps + 1 if steps and branches == 1 else tokens
