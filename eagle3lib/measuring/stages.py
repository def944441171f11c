"""Where do two computations of the same thing first part?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lib.errors import InputError

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


def compare_stages(
    found: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    order: Sequence[str] | None = None,
    tolerance: float | None = None,
) -> list[StageDiff]:
    """Compare stage by stage in execution order (by default the order of ``reference``).

    Raises:
        InputError: nothing to compare, a stage that one side lacks, or shapes that differ.
    """
    order = list(reference) if order is None else list(order)
    if not order:
        raise InputError("stages", "none in common", "at least one stage to compare")
    return [
        _compare(stage, _get(found, stage, "captured"), _get(reference, stage, "reference"), tolerance)
        for stage in order
    ]


def first_divergence(diffs: Sequence[StageDiff]) -> str | None:
    """The first stage that is not ok; ``None`` where all are."""
    return next((diff.stage for diff in diffs if not diff.ok), None)


def _get(stages: Mapping[str, Tensor], stage: str, side: str) -> Tensor:
    if stage not in stages:
        raise InputError(f"{side} stages", f"no {stage!r} among {sorted(stages)}", "every stage on both sides")
    return stages[stage]


def _compare(stage: str, found: Tensor, reference: Tensor, tolerance: float | None) -> StageDiff:
    if found.shape != reference.shape or found.numel() == 0:
        raise InputError(f"stage {stage}", f"shape {list(found.shape)}", f"shape {list(reference.shape)}, not empty")
    if tolerance is None:
        tolerance = max(TOLERANCE.get(value.dtype, TOLERANCE[torch.float32]) for value in (found, reference))
    a, b = found.double().flatten(), reference.double().flatten()
    if not (a.isfinite().all() and b.isfinite().all()):
        return StageDiff(stage, float("inf"), float("inf"), 0.0, tolerance, ok=False)
    difference, size = a - b, float(b.norm().clamp_min(1e-30))
    relative = float(difference.norm()) / size
    cosine = float(a @ b) / (size * float(a.norm().clamp_min(1e-30)))
    return StageDiff(stage, float(difference.abs().max()), relative, cosine, tolerance, relative <= tolerance)
