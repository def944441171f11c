"""The catalogue of kinds: complete, readable, and the same in the documentation."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from eagle3lib.findings.catalogue import catalogue, catalogue_table, entry, kind_of_switch, make_finding, markdown
from eagle3lib.maths.wiring import Wiring

ROOT = Path(__file__).parents[1]


def test_the_page_is_the_catalogue() -> None:
    assert (ROOT / "docs" / "findings.md").read_text(encoding="utf-8") == markdown(), "run: make docs"


def test_every_entry_reads_as_sentences() -> None:
    for row in catalogue_table():
        for name in ("meaning", "consequence", "source"):
            assert row[name], row
        for name in ("meaning", "consequence", "remedy"):
            assert not re.search(r"\{\w*\}", row[name]), row  # a template that nobody filled in
            assert not row[name] or row[name].rstrip(']}"').endswith("."), row


def test_every_kind_that_the_code_names_is_in_the_catalogue() -> None:
    families = "|".join({kind.split(".")[0] for kind, _ in catalogue()})
    pattern = re.compile(rf'"((?:{families})\.[a-z0-9_]+)"')
    named = {
        kind
        for path in (ROOT / "eagle3lib" / "findings").glob("*.py")
        for kind in pattern.findall(path.read_text(encoding="utf-8"))
        if kind.split(".")[1] not in ("weight", "json")
    }
    assert named and not {kind for kind in named if entry(kind) is None}


def test_every_switch_of_the_wiring_has_a_kind() -> None:
    switches = {field.name for field in fields(Wiring)} - {"boundaries"}
    assert all(switch in entry(kind_of_switch(switch)).switches for switch in switches)


def test_a_case_says_what_differs_and_a_suffix_is_a_case() -> None:
    usual, absolute = entry("vocab.map"), entry("vocab.map.absolute")
    assert absolute.consequence == usual.consequence and absolute.remedy != usual.remedy
    assert entry("vocab.map.dtype") == usual and entry("never.heard_of") is None
    with pytest.raises(KeyError):
        make_finding("never.heard_of", "s", "e")
    with pytest.raises(KeyError):
        make_finding("vocab.map", "s", "e", case="none such")
