"""One rule of the static inspection as data, and what rules look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3lib.engine.capture_ids import VERSIONS
from eagle3lib.engine.engine_config import EngineConfig
from eagle3lib.errors import InputError, UnsafeFile
from eagle3lib.findings.finding import Edit, Finding, Severity
from eagle3lib.findings.weight_facts import WeightFacts
from eagle3lib.maths.wiring import Wiring
from eagle3lib.reading.checkpoint import Checkpoint
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
                "boundaries for fc's slots",
                "write the ids into eagle_config.eagle_aux_hidden_state_layer_ids, and give the target",
            )
        return found

    @property
    def topics(self) -> set[str]:
        """What is wrong with the capture of states, by topic."""
        found = self.served.captured
        return {problem.topic for problem in found.problems} if found else set()


Facts = Mapping[str, Any]


def set_config(key: str, value: Any) -> Facts:
    """The cure that sets one field of the draft's config."""
    return {"remedy": f"Set {key} to {json.dumps(value)}.", "edits": [Edit("draft config", key, value)]}


def drop_flag(flag: str) -> Facts:
    """The cure that takes one flag off the launch line."""
    return {"remedy": f"Drop {flag}.", "edits": [Edit("launch", flag, None)]}


@dataclass(frozen=True)
class Rule:
    """``when`` gives the facts of every case found, none when the rule is silent.

    The wording is filled in from the facts; those named ``kind`` (a suffix), ``severity``, ``subject``,
    ``remedy`` and ``edits`` stand in for the rule's own. ``source`` is repository, path and symbol.
    """

    kind: str
    severity: Severity
    subject: str
    when: Callable[[Inspection], Iterable[Facts]]
    evidence: str
    consequence: str
    source: str
    remedy: str = ""
    engines: tuple[str, ...] = VERSIONS

    def judge(self, inspection: Inspection) -> list[Finding]:
        """The findings of this rule, none for an engine version that it is not about."""
        if inspection.served.version not in self.engines:
            return []
        return [self._finding({"version": inspection.served.version, **facts}) for facts in self.when(inspection)]

    def _finding(self, facts: Facts) -> Finding:
        return Finding(
            kind=self.kind + (f".{facts['kind']}" if facts.get("kind") else ""),
            severity=facts.get("severity", self.severity),
            subject=facts["subject"] if "subject" in facts else self.subject.format(**facts),
            evidence=self.evidence.format(**facts),
            consequence=self.consequence.format(**facts),
            remedy=facts["remedy"] if "remedy" in facts else self.remedy.format(**facts),
            edits=tuple(facts.get("edits", ())),
        )
