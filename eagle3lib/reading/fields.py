"""Checked fields of a foreign mapping: found under any of their names, of the right type, in range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eagle3lib.errors import InputError

#: More of anything than any model has and any run counts.
MOST = 1e18


def dig(record: Any, dotted: str) -> Any:
    """The value at a dotted path; None where a part of it is missing or no mapping."""
    for part in dotted.split("."):
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


def is_number(value: Any) -> bool:
    """A finite number of at most ``MOST``; text and truth values are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST <= value <= MOST


def number(
    record: Mapping[str, Any],
    names: str | Sequence[str],
    where: object,
    expected: str = f"a number of at most {MOST:g}",
    fits: Callable[[float], bool] = lambda value: True,
    whole: bool = False,
) -> Any:
    """The first of ``names`` that is not null, as a float, or an int if ``whole``; None where there is none.

    Raises:
        InputError: no number, not whole though it has to be, or a value that does not fit.
    """
    for name in (names,) if isinstance(names, str) else names:
        value = record.get(name)
        if value is None:
            continue
        if not is_number(value) or (whole and value != int(value)) or not fits(value):
            raise InputError(f"{where} {name}", repr(value)[:80], expected)
        return int(value) if whole else float(value)
    return None


def numbers(
    record: Mapping[str, Any], name: str, where: object, whole: bool = False, most: float = MOST
) -> tuple[Any, ...]:
    """The list of numbers in a field, each as :func:`number` reads it."""
    values, expected = record.get(name), f"a list of {'whole ' if whole else ''}numbers of at most {most:g}"
    if not isinstance(values, list) or None in values:
        raise InputError(f"{where} {name}", repr(values)[:80], expected)
    return tuple(number({name: value}, name, where, expected, lambda v: v <= most, whole) for value in values)


def mapping(record: Mapping[str, Any], name: str, where: object) -> Mapping[str, Any]:
    """The mapping in a field; empty where there is none."""
    found = {} if record.get(name) is None else record[name]
    if not isinstance(found, Mapping):
        raise InputError(f"{where} {name}", repr(found)[:80], "a mapping or null")
    return found


def first_name(names: Any) -> str:
    """The first of a list of names, such as ``architectures``; "" where there is none."""
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
