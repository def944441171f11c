"""The engine's own inputs through our forward pass: where does the engine's draft first differ?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from eagle3lib.maths.draft import Draft, combine, depth_states
from eagle3lib.maths.kernels import rms_norm
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.stages import StageDiff, compare_stages
from eagle3lib.reading.captures import Capture

#: Stages that the capture hook writes, in execution order, under its names.
STAGES = ("fc", "qkv_input", "attention_output", "residual", "norm")


def replay(captures: Sequence[Capture], draft: Draft, wiring: Wiring) -> list[StageDiff]:
    """Every stage of depth 1 that a capture holds, against ours on the same states and tokens.

    Empty where the captures hold inputs of ``fc`` alone, or of another width than ``fc`` has, or lack rows. The states
    come from the capture, so that what differs here differs inside the draft and not in what it was fed.
    """
    width = draft.fc.weight.shape[1]
    usable = [
        c for c in captures if "embedded_ids" in c.stages and c.aux_hidden_states.shape[-1] == width and _whole(c)
    ]
    names = [name for name in STAGES if usable and all(name in capture.stages for capture in usable)]
    if not names:
        return []
    ours = [_stages(capture, draft, wiring) for capture in usable]
    theirs = {name: torch.cat([capture.stages[name] for capture in usable]) for name in names}
    return compare_stages(theirs, {name: torch.cat([stages[name] for stages in ours]) for name in names}, names)


def _whole(capture: Capture) -> bool:
    """Every stage has a row for every position; a truncated capture is told by ``capture_findings``."""
    return {len(rows) for rows in capture.stages.values()} == {len(capture.positions)}


def _stages(capture: Capture, draft: Draft, wiring: Wiring) -> Mapping[str, Tensor]:
    """Row t of the capture pairs the state of position t with ``embedded_ids[t]``: the tokens are read from it."""
    seen: dict[str, Tensor] = {}

    def note(name: str, value: Tensor) -> None:
        seen[name] = value

    states = capture.aux_hidden_states.unflatten(-1, (draft.slots, -1))  # [T, K, H]
    embedded = capture.stages["embedded_ids"].flatten()
    tokens = torch.cat([embedded[:1], embedded])  # [T + 1]: token t + 1 stands beside state t
    hidden = combine(draft, wiring, states, note)
    padded = torch.cat([hidden, hidden[-1:]])  # a last row that no start uses
    state = next(depth_states(draft, wiring.but(shift=0), padded, tokens, 1, note=note))  # [T, H]
    residual_in = hidden if not wiring.norm_before_residual else seen["hidden_norm"]
    return {
        "fc": seen["fc"],
        "qkv_input": seen["concatenation"],
        "attention_output": seen["residual"] - residual_in,
        "residual": state,
        "norm": rms_norm(state, draft.norm, draft.eps),
    }
