"""What the rules of notebook 01 look at: draft, target and launch line, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eagle3lib.engine.engine_config import EngineConfig
from eagle3lib.engine.loading import Loading
from eagle3lib.errors import InputError, UnsafeFile
from eagle3lib.findings.finding import Finding
from eagle3lib.findings.weight_facts import WeightFacts
from eagle3lib.maths.wiring import Wiring
from eagle3lib.reading.checkpoint import Checkpoint, TensorInfo
from eagle3lib.reading.draft_config import DraftConfig
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.target_config import TargetConfig
from eagle3lib.trainers.trained_wiring import Trained


@dataclass(frozen=True)
class Inspection:
    """Everything the rules look at, read once. ``missing`` lists what was not given, and so not judged."""

    draft: DraftConfig
    target: TargetConfig | None
    launch: Launch
    engine: str
    longest_prompt: int
    checkpoint: Checkpoint | None
    served: EngineConfig
    trained: Trained
    weights: WeightFacts
    unsafe: tuple[UnsafeFile, ...]
    missing: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def layers(self) -> int | None:
        """Blocks of the target."""
        return self.target.layers if self.target else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed beyond the config: the nearest engine's rules, an unknown family, a trainer's habit."""
        return (*self.served.notes, *(self.target.notes if self.target else ()), *self.trained.notes)

    @property
    def captured_boundaries(self) -> tuple[int, ...] | None:
        """What the engine will capture, as far as the target is known."""
        return self.served.captured.boundaries if self.served.captured else None

    @property
    def runnable_wiring(self) -> Wiring:
        """The wiring the engine realises; where it would not start, the one the draft was trained with.

        Raises:
            InputError: neither is known.
        """
        found = self.served.wiring or self.trained.wiring
        if found is None:
            reasons = "; ".join(refusal.text for refusal in self.served.crashes) or self.trained.reason
            raise InputError(
                "the draft's wiring",
                f"none that can be run ({reasons})",
                "boundaries for fc's column blocks",
                "write the ids into eagle_config.eagle_aux_hidden_state_layer_ids, and give the target",
            )
        return found

    def refusals(self, *topics: str) -> list[str]:
        """Why the engine does not capture all states, start or serve, as far as it is about these topics."""
        return [refusal.text for refusal in self.served.crashes if refusal.topic in topics]

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The draft's tensors by name, none where the weights are not known."""
        return self.checkpoint.tensors if self.checkpoint else {}

    def tensor(self, *endings: str) -> TensorInfo | None:
        """The draft's first tensor whose name ends in one of these."""
        return self.checkpoint.find(*endings) if self.checkpoint else None

    @property
    def loading(self) -> Loading:
        """What the engine loads, empty where that is not known."""
        return self.served.loading or Loading((), (), (), None, None)
