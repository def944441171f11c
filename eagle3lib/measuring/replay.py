"""The engine's own inputs through our forward pass: where does the engine's draft first differ?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft, combine, depth_states
from eagle3lib.maths.kernels import rms_norm
from eagle3lib.maths.wiring import Wiring
from eagle3lib.reading.captures import Capture

#: Stages that the capture hook writes, in execution order, under its names.
STAGES = ("fc", "qkv_input", "attention_output", "residual", "norm")
#: Relative Frobenius error that rounding alone may cause, by the coarser of the two number formats.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class StageDiff:
    """One stage held against its reference; ``ok`` where ``relative`` is within ``tolerance``."""

    stage: str
    max_abs: float
    relative: float  #: Frobenius norm of the difference over that of the reference
    cosine: float
    tolerance: float
    ok: bool


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
    return [
        compare(name, torch.cat([c.stages[name] for c in usable]), torch.cat([stages[name] for stages in ours]))
        for name in names
    ]


def first_divergence(diffs: Sequence[StageDiff]) -> str | None:
    """The first stage that is not ok; ``None`` where all are."""
    return next((diff.stage for diff in diffs if not diff.ok), None)


def compare(stage: str, found: Tensor, reference: Tensor) -> StageDiff:
    """One stage, ours the reference. Raises ``InputError`` where the shapes differ or nothing is there."""
    if found.shape != reference.shape or found.numel() == 0:
        raise InputError(f"stage {stage}", f"shape {list(found.shape)}", f"shape {list(reference.shape)}, not empty")
    tolerance = max(TOLERANCE.get(value.dtype, TOLERANCE[torch.float32]) for value in (found, reference))
    a, b = (value.cpu().double().flatten() for value in (found, reference))
    if not (a.isfinite().all() and b.isfinite().all()):
        return StageDiff(stage, float("inf"), float("inf"), 0.0, tolerance, ok=False)
    difference, size = a - b, float(b.norm().clamp_min(1e-30))
    relative = float(difference.norm()) / size
    cosine = float(a @ b) / (size * float(a.norm().clamp_min(1e-30)))
    return StageDiff(stage, float(difference.abs().max()), relative, cosine, tolerance, relative <= tolerance)


def _whole(capture: Capture) -> bool:
    """Every stage has a row for every position; a truncated capture is reported by ``capture_findings``."""
    return {len(rows) for rows in capture.stages.values()} == {len(capture.positions)}


def _stages(capture: Capture, draft: Draft, wiring: Wiring) -> Mapping[str, Tensor]:
    """Row t of the capture pairs the state of position t with ``embedded_ids[t]``: the tokens are read from it."""
    seen: dict[str, Tensor] = {}

    def on_stage(name: str, value: Tensor) -> None:
        seen[name] = value

    states = capture.aux_hidden_states.unflatten(-1, (draft.num_aux_hidden_states, -1))  # [T, K, H]
    embedded = capture.stages["embedded_ids"].flatten()
    tokens = torch.cat([embedded[:1], embedded])  # [T + 1]: token t + 1 is paired with state t
    hidden = combine(draft, wiring, states, on_stage)
    padded = torch.cat([hidden, hidden[-1:]])  # a last row that no start uses
    state = next(depth_states(draft, wiring.replace(shift=0), padded, tokens, 1, on_stage=on_stage))  # [T, H]
    residual_in = hidden if not wiring.norm_before_residual else seen["hidden_norm"]
    return {
        "fc": seen["fc"],
        "qkv_input": seen["concatenation"],
        "attention_output": seen["residual"] - residual_in,
        "residual": state,
        "norm": rms_norm(state, draft.norm, draft.eps),
    }
