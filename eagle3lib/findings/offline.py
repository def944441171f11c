"""What notebook 03 predicts with: a draft under the wiring that the engine's rules give, beside its target.

What cannot be had from the inputs is said, and that part left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lib.errors import InputError
from eagle3lib.findings.config_rules import inspect
from eagle3lib.findings.inspection import Inspection
from eagle3lib.maths.device import resolve_device
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.expected import Rule
from eagle3lib.measuring.sample_states import Progress, StatesDataset
from eagle3lib.measuring.served import ServedPrediction, predict_reports
from eagle3lib.measuring.served_wiring import ServedWiring, served_wiring
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.samples import read_samples

#: Passes items on and shows how far it is.
Watch = Callable[[Iterable, str], Iterable]


@dataclass(frozen=True)
class Pair:
    """Everything that a prediction needs. ``rule``: how the engine verifies above temperature 0; on a CPU as at 0."""

    inspection: Inspection
    draft: Draft
    wiring: Wiring
    target: Target
    rule: Rule

    def dataset(self, path: str) -> StatesDataset:
        vocab, width = self.target.embedding.shape
        samples = read_samples(path, width, vocab=vocab)
        return StatesDataset(samples, self.target, self.wiring.boundaries)


def open_pair(
    draft: str, target: str, launch: str, engine: str, cache: Path, dtype: str = "float32", device: str = "cpu"
) -> tuple[Inspection | None, Pair | str]:
    """What the files say, as far as that goes, and what predicts with them, or why nothing can.

    Raises ``InputError`` for a ``device`` that is not here: asked for by name, it is no part to leave out.
    """
    place = resolve_device(device)
    if not draft:
        return None, "Not predicted: that needs draft and target."
    inspection = None
    try:
        inspection = inspect(draft, target, launch, engine)
        if not target:
            return inspection, "Not predicted: that needs draft and target."
        wiring, opened = inspection.runnable_wiring, Target.open(target, dtype, place, cache)
        rule = _rule(Launch.parse(launch))
        loaded = opened.load_draft(draft)
    except InputError as error:
        return inspection, f"Not predicted. {error}"
    return inspection, Pair(inspection, loaded, wiring, opened, rule)


def _rule(launch: Launch) -> Rule:
    """SGLang 0.5.23, ``eagle_utils._verify_uses_greedy``, ``speculative_hook``; ROCm may default otherwise."""
    if launch.text("device") in ("cpu", "xpu"):
        return "greedy"
    drawn = ("speculative_use_rejection_sampling", "speculative_use_block_verification")
    return "rejection" if any(launch.switch(name) for name in drawn) else "target-only"


def predict_served(
    pair: Pair | str, reports: Sequence[EngineReport], temperature: float = 0.0
) -> tuple[tuple[ServedPrediction, ...], str]:
    """What was served, predicted from its own tokens; and why not.

    Above temperature 0 that holds under the target-only rule too, where a rejected draft is never drawn.
    """
    if isinstance(pair, str) or not reports:
        return (), ""
    if temperature and pair.rule == "rejection":
        return (), "The served requests are not predicted: under rejection sampling the draft's draws decide."
    try:
        found = predict_reports(reports, pair.draft, pair.wiring, pair.target)
    except InputError as error:
        return (), f"The served requests are not predicted. {error}"
    if not found:
        known = any(report.setting.resolved() for report in reports)
        lacks = "no report gives their token ids" if known else "num_steps is not known: give it, or launch"
        return (), f"The served requests are not predicted: {lacks}."
    dropped = [f"{each.left_out} of {each.source}" for each in found if each.left_out]
    return tuple(found), f"Left out, as they give no usable token ids: {', '.join(dropped)}." if dropped else ""


def read_wiring(
    pair: Pair | str, reports: Sequence[EngineReport], temperature: float, progress: Progress
) -> list[ServedWiring]:
    """The prediction turned round: the wiring under which it is what was served; nothing where it cannot be told."""
    if isinstance(pair, str) or not reports or (temperature and pair.rule == "rejection"):
        return []
    ids, bases = pair.inspection.draft.aux_ids, [pair.inspection.target.rope.theta]
    try:
        return served_wiring(reports, pair.draft, pair.wiring, pair.target, ids=ids, bases=bases, progress=progress)
    except InputError:  # said of the prediction already, which needs the same
        return []
