"""The flags a run was served under, from its report or a file beside it.

A server's log prints its resolved flags once, as a mapping (SGLang 0.5.23, ``entrypoints/engine.py``) or as
``ServerArgs(...)`` (0.5.9). A saved ``/server_info`` or a launch line may lie beside a report under its name:
``tp4.jsonl`` with ``tp4.server_info.json`` or ``tp4.launch.txt``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.launch import Launch

BESIDE = (".server_info.json", ".launch.txt")
_IN_LOG = re.compile(r"server_args=((?:ServerArgs\(|\{).*[)}])")


def run_flags(text: str) -> dict[str, Any]:
    """The flags that a ``/server_info`` or a server's log names; empty where it names none."""
    if text.lstrip().startswith("{") and ("internal_states" in text or "server_args" in text):
        try:
            flags = Launch.parse(text).flags
            # the server's own command line, where it is there: resolved flags also show what follows from it
            return _plain(Launch.parse(str(flags.get("launch_command") or "")).flags or flags)
        except InputError:  # a report whose text merely holds such a word
            return {}
    found = _IN_LOG.search(text)
    return _plain(_from_log(found[1])) if found else {}


def flags_within(content: Any) -> dict[str, Any]:
    """The flags that a report's own objects carry as ``server_args``; empty where none does."""
    for item in content if isinstance(content, list) else [content]:
        if isinstance(item, Mapping) and isinstance(flags := item.get("server_args"), Mapping):
            return _plain(flags)
    return {}


def flags_beside(files: Sequence[Path]) -> dict[Path, dict[str, Any]]:
    """The flags of each report among ``files`` that has a file of them beside it."""
    found = {}
    for file in files:
        ending = next((ending for ending in BESIDE if file.name.endswith(ending)), None)
        if ending is None:
            continue
        text = file.read_text(errors="replace")
        flags = _plain(Launch.parse(text).flags) if ending == ".launch.txt" else run_flags(text)
        stem = file.name.removesuffix(ending)
        owners = [other for other in files if other.name.split(".")[0] == stem and not other.name.endswith(BESIDE)]
        found |= dict.fromkeys(owners, flags)
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The flags on which two runs differ, less what differs from run to run (ports, seeds, log files)."""
    names = {name for name in (*one, *other) if not _CHANGES.search(name)}
    return {name: (one.get(name), other.get(name)) for name in sorted(names) if one.get(name) != other.get(name)}


_CHANGES = re.compile(
    r"port|host|url|addr|seed|log|time|status|version|dir|key|_id$|internal|launch_command|env|max_total_num|memory"
)


def _from_log(expression: str) -> dict[str, Any]:
    try:
        node = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return {}
    pairs = []
    if isinstance(node, ast.Call):
        pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
    elif isinstance(node, ast.Dict):
        pairs = [(k.value, v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)]
    return {str(name): value.value for name, value in pairs if isinstance(value, ast.Constant)}


def _plain(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Single values only, with absent, off and empty alike: a flag not given is one that is off."""
    kept = {k: v for k, v in flags.items() if isinstance(v, (str, int, float, bool)) and v not in ("", False)}
    return {k: int(v) if isinstance(v, str) and re.fullmatch(r"-?[0-9]{1,18}", v) else v for k, v in kept.items()}
