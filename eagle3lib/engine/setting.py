"""The speculative setting that notebook 03 compares with: what was asked there, else what the server runs."""

from __future__ import annotations

from pathlib import Path

from eagle3lib.engine.capture_ids import engine_version
from eagle3lib.engine.speculation import speculation
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.target_config import TargetConfig

#: Where neither parameters nor flags say anything: the chain SGLang takes for most targets.
USUAL = (3, 1, 4)


def asked_setting(
    launch: str, target: str | Path, engine: str, num_steps: int, topk: int, num_draft_tokens: int
) -> tuple[int, int, int]:
    """``(num_steps, topk, num_draft_tokens)``; 0 stands for not given, and for no speculation in the result.

    A chain (topk 1) always verifies ``num_steps + 1`` tokens, whatever was asked.
    """
    architecture = TargetConfig.open(target).architecture if target else ""
    served = speculation(Launch.parse(launch), architecture, engine_version(engine)[0])
    found = (served.num_steps, served.topk, served.num_draft_tokens)
    steps, branches, tokens = (
        given or flag or usual
        for given, flag, usual in zip((num_steps, topk, num_draft_tokens), found, USUAL, strict=True)
    )
    return steps, branches, steps + 1 if branches == 1 else tokens
