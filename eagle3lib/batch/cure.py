"""A verdict's remedies applied: a cured copy of the draft folder and a cured command line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.findings.edits import apply_edits
from eagle3lib.findings.finding import Edit
from eagle3lib.reading.files import parse_object, read_text
from eagle3lib.reading.launch import Launch
from eagle3lib.reporting.records import read_record, write_json

#: A diagnosis below this confidence is a hint for a person; its edits are not applied.
CONFIDENCE = 0.5
_DRAFT_FLAG = "--speculative-draft-model-path"


def cured_parameters(source: Path, parameters: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """``draft`` and ``launch`` with the edits of the verdict in ``source`` (a run folder) applied.

    Writes ``<folder>/cured_draft`` where the draft's config is edited; its path then replaces the draft's in
    ``launch`` too. Raises ``InputError`` when there is no verdict, or no edit in it.
    """
    edits = verdict_edits(source)
    changes = {edit.key: edit.value for edit in edits if edit.where == "launch"}
    config_edits = [edit for edit in edits if edit.where == "draft config"]
    launch = Launch.parse(parameters.get("launch", ""))
    cured: dict[str, Any] = {}
    if config_edits:
        draft = write_cured_draft(Path(parameters.get("draft", "")), config_edits, folder / "cured_draft")
        cured["draft"] = str(draft)
        if launch.text("speculative_draft_model_path") is not None:
            changes[_DRAFT_FLAG] = str(draft)
    if changes:
        cured["launch"] = launch.render(changes)
    return cured


def verdict_edits(source: Path) -> list[Edit]:
    """The edits of the likely diagnoses, one a place: where two differ, the likelier one has its way."""
    record = read_record(source, "06_verdict")
    edits: dict[tuple[str, str], Edit] = {}
    for entry in record["results"].get("diagnosis", []):
        if entry.get("confidence", 0) >= CONFIDENCE:
            for edit in entry.get("edits", []):
                edits.setdefault((edit["where"], edit["key"]), Edit(edit["where"], edit["key"], edit["value"]))
    if not edits:
        raise InputError(
            source / "06_verdict.json", "no edit in a diagnosis of confidence 0.5 or more",
            "remedies that a program can apply", "cure a run whose verdict names a cause",
        )  # fmt: skip
    return list(edits.values())


def write_cured_draft(draft: Path, edits: Sequence[Edit], folder: Path) -> Path:
    """A copy of the ``draft`` folder with config.json edited as 01 does; the other files are hard links if possible."""
    path = draft / "config.json"
    cured = apply_edits(parse_object(read_text(path), path, duplicates=[]), edits)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(draft, folder, copy_function=_link_or_copy)
    (folder / "config.json").unlink()  # a link: writing through it would change the original
    write_json(folder / "config.json", cured)
    return folder


def _link_or_copy(source: str, target: str) -> None:
    """Weights are large; a hard link keeps the copy self-contained, unlike a symbolic one."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another file system
        shutil.copy2(source, target)
