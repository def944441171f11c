"""Single methods of the installed SGLang, compiled from its own source without importing its kernels."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def folder() -> Path:
    """``srt/`` of the installed package; skips the test where there is none."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        pytest.skip("sglang is not installed")
    return Path(next(iter(found.submodule_search_locations))) / "srt"


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((folder() / "models" / f"{file}.py").read_text())


def method(file: str, owner: str, name: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    """``owner.name`` of ``srt/models/<file>.py`` as a plain function over ``namespace``."""
    body = next(n.body for n in _tree(file).body if isinstance(n, ast.ClassDef) and n.name == owner)
    function = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)
    function.decorator_list = []
    future = ast.parse("from __future__ import annotations").body
    scope = dict(namespace)
    exec(compile(ast.Module(body=[*future, function], type_ignores=[]), f"{file}.{owner}.{name}", "exec"), scope)
    return scope[name]
