"""Paths that stay inside a folder, JSON that is what it claims to be, and files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError, UnsafeFile

#: Far above any real config (10 KB) and above the index of a 1 T parameter model (10 MB).
MAX_JSON_BYTES = 64 << 20
MAX_DEPTH = 64
_TOO_DEEP = ("JSON nested too deeply", f"at most {MAX_DEPTH} levels")


def inside(folder: Path, name: str) -> Path:
    """The real path of ``name`` in ``folder``, or :class:`UnsafeFile` when it leads out of it.

    Links are followed. The one place outside the folder that is allowed is the ``blobs`` folder of the
    same cached repository, where every file of a Hugging Face hub snapshot really lies.
    """
    root = folder.resolve()
    real = (root / name).resolve()
    if real.is_relative_to(root):
        return real
    for parent in root.parents:
        if parent.name == "snapshots" and real.is_relative_to((parent.parent / "blobs").resolve()):
            return real
    found, cure = f"a path that leads to {real}", "copy the file into the folder"
    raise UnsafeFile(folder / name, found, "a file inside the folder", cure)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside ``path``, which takes its place when all went well; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` at once."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_text(path: Path) -> str:
    """The UTF-8 text of a file of at most ``MAX_JSON_BYTES``."""
    try:
        size = path.stat().st_size
        if not path.is_file() or size > MAX_JSON_BYTES:
            raise InputError(path, f"{size:,} bytes", f"a regular file of at most {MAX_JSON_BYTES:,} bytes")
        return path.read_text(encoding="utf-8-sig")  # Windows begins files with a mark that is no text
    except UnicodeDecodeError as error:
        raise InputError(path, f"bytes that are not UTF-8 ({error.reason})", "UTF-8 text") from None
    except OSError as error:
        cure = "check the path and its permissions"
        raise InputError(path, error.strerror or str(error), "a readable file", cure) from None


def files_at(path: str | Path, parameter: str, expected: str, without: tuple[str, ...] = ()) -> list[Path]:
    """The file ``path``, or the files of the folder ``path`` in order; at least one.

    Of a folder, hidden files and those with an ending in ``without`` are left out.
    """
    path = Path(path)
    inner = sorted(path.iterdir()) if path.is_dir() else []
    wanted = [file for file in inner if not file.name.startswith(".") and not file.name.lower().endswith(without)]
    files = [file for file in wanted or [path] if file.is_file()]
    if not files:
        raise InputError(parameter, f"nothing at {path.name}", expected)
    return files


def read_object(folder: str | Path, name: str, duplicates: list[str] | None = None) -> dict[str, Any]:
    """The JSON object in a file that lies in ``folder``; ``duplicates`` as in :func:`parse_object`."""
    return parse_object(read_text(inside(Path(folder), name)), Path(folder) / name, duplicates)


def parse_object(text: str, where: object, duplicates: list[str] | None = None) -> dict[str, Any]:
    """One JSON object; NaN, infinities and nesting deeper than 64 are refused.

    Keys given twice are refused too, unless a list ``duplicates`` collects those whose values differ: then
    the last one counts, as in Python's ``json`` and so in transformers and SGLang.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            names = [key for key, _ in items]
            if duplicates is None:
                twice = next(key for key in names if names.count(key) > 1)
                raise InputError(where, f"the key {twice!r} twice", "every key once")
            duplicates.extend(dict.fromkeys(key for key, value in items if value != found[key]))
        return found

    def constant(name: str) -> Any:
        raise InputError(where, name, "finite numbers (strict JSON)")

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError:
        raise InputError(where, *_TOO_DEEP) from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(where, f"text that is not strict JSON ({error})", "one JSON object") from None
    if not isinstance(data, dict):
        raise InputError(where, f"a JSON {type(data).__name__}", "one JSON object")
    _check_depth(data, where)
    return data


def load_json(text: str, where: object) -> tuple[Any, str]:
    """The JSON document in ``text``, or the list of a JSONL file's lines; ``None`` and why it is neither.

    Raises:
        InputError: JSON nested deeper than 64.
    """
    try:
        data, broken = _document_or_lines(text)
    except RecursionError:
        raise InputError(where, *_TOO_DEEP) from None
    _check_depth(data, where)
    return data, broken


def _document_or_lines(text: str) -> tuple[Any, str]:
    try:
        return json.loads(text), ""
    except ValueError as error:
        broken = f"broken JSON ({error})"
    found: list[Any] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            found += [json.loads(line)] if line.strip() else []
        except ValueError:
            return None, f"broken JSON in line {number}" if found else broken
    return found or None, ""


def _check_depth(data: Any, where: object) -> None:
    level, depth = [data], 0
    while level:
        if (depth := depth + 1) > MAX_DEPTH:
            raise InputError(where, *_TOO_DEEP)
        inner = [v for v in level if isinstance(v, (dict, list))]
        level = [child for v in inner for child in (v.values() if isinstance(v, dict) else v)]
