"""The static inspection: a draft, a target and a launch line in, findings and a corrected config out."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3lib.engine.engine_config import resolve_engine_config
from eagle3lib.errors import InputError, UnsafeFile
from eagle3lib.findings import rules_draft, rules_launch, rules_layers, rules_weights
from eagle3lib.findings.edits import apply_edits
from eagle3lib.findings.finding import Finding, by_severity
from eagle3lib.findings.inspection import Inspection
from eagle3lib.findings.weight_facts import weight_facts
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.draft_config import DraftConfig
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.target_config import TargetConfig
from eagle3lib.trainers.trained_wiring import trained_wiring

#: Every rule, by theme: each yields the findings of one inspection.
RULES: tuple[Callable[[Inspection], Iterable[Finding]], ...] = (
    *rules_layers.RULES,
    *rules_draft.RULES,
    *rules_weights.RULES,
    *rules_launch.RULES,
)


def inspect(
    draft_folder: str | Path, target_folder: str | Path = "", launch_text: str = "", engine: str = "sglang==0.5.23",
    longest_prompt: int = 0,
) -> Inspection:  # fmt: skip
    """Read everything once and apply every rule.

    ``target_folder`` and ``launch_text`` may be "": fewer rules apply then, and ``missing`` lists what was not
    given. ``longest_prompt`` is in tokens, 0 if unknown. Unsafe weights become a finding; other unusable
    files raise :class:`InputError`.
    """
    if not str(draft_folder):
        raise InputError("draft", "nothing", "a checkpoint folder", "give the draft's folder")
    if longest_prompt < 0:
        raise InputError("longest_prompt", longest_prompt, "a number of tokens, or 0 if unknown")
    draft = DraftConfig.open(draft_folder)
    target = TargetConfig.open(target_folder) if str(target_folder) else None
    launch = Launch.parse(launch_text)
    unsafe: list[UnsafeFile] = []
    checkpoint = _weights(draft_folder, unsafe)
    beside = _weights(target_folder, unsafe, ("embed_tokens.weight", "lm_head.weight")) if target else None
    served = resolve_engine_config(draft, target, launch, engine, checkpoint)
    not_given = {
        "target: boundaries, widths and context are not judged": target is None,
        "launch: flags are not judged": not launch,
        "draft weights: only the config is judged": checkpoint is None and not unsafe,
        "target weights: embedding and head are not compared": target is not None and beside is None,
        "draft geometry: shapes are not judged": checkpoint is not None and served.loading is None,
    }
    return _judged(
        Inspection(
            draft=draft,
            target=target,
            launch=launch,
            engine=engine,
            longest_prompt=longest_prompt,
            checkpoint=checkpoint,
            served=served,
            trained=trained_wiring(draft, target, checkpoint),
            weights=weight_facts(draft, target, checkpoint, served.loading, beside),
            unsafe=tuple(unsafe),
            missing=tuple(text for text, lacking in not_given.items() if lacking),
        )
    )


def changed(inspection: Inspection, ids: Sequence[int] | None, launch_text: str) -> Inspection:
    """The same draft with other ids in its config and other flags; what it was trained for stays."""
    raw = copy.deepcopy(dict(inspection.draft.raw))
    eagle = raw["eagle_config"] = dict(raw.get("eagle_config") or {})
    eagle.pop("eagle_aux_hidden_state_layer_ids", None)
    if ids is not None:
        eagle["eagle_aux_hidden_state_layer_ids"] = list(ids)
    draft, launch = DraftConfig.from_dict(raw), Launch.parse(launch_text)
    served = resolve_engine_config(draft, inspection.target, launch, inspection.engine, inspection.checkpoint)
    return _judged(replace(inspection, draft=draft, launch=launch, served=served))


def _judged(inspection: Inspection) -> Inspection:
    """With every rule's findings, errors first."""
    found = [finding for rule in RULES for finding in rule(inspection)]
    return replace(inspection, findings=tuple(by_severity(found)))


def corrected_config(inspection: Inspection) -> tuple[dict[str, Any], str]:
    """The draft's config with every edit of the findings applied, and the difference as unified diff text.

    The caller writes it somewhere else: the user's own file is never touched. The diff is empty when
    nothing is to change.
    """
    before = dict(inspection.draft.raw)
    after = apply_edits(before, [edit for finding in inspection.findings for edit in finding.edits])
    texts = [json.dumps(config, indent=2, sort_keys=True).splitlines(keepends=True) for config in (before, after)]
    return after, "".join(difflib.unified_diff(*texts, "config.json", "config.json (corrected)"))


def _weights(folder: str | Path, unsafe: list[UnsafeFile], only: tuple[str, ...] = ()) -> Checkpoint | None:
    """The checkpoint of a folder; None where it holds no weights or unsafe ones."""
    try:
        checkpoint = Checkpoint.open(folder, only)
    except UnsafeFile as error:
        unsafe.append(error)
        return None
    return checkpoint if checkpoint.tensors or checkpoint.absent else None
