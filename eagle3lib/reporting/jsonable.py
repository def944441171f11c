"""Results as plain JSON: dataclasses, numpy and torch scalars, paths; NaN and infinities become null."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any


def jsonable(value: Any) -> Any:
    """``value`` in JSON's own types. An object with ``to_json()`` decides for itself.

    Raises ``TypeError`` for what has no plain form: a record never holds the text of a Python object.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(jsonable(item) for item in value)
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "to_json"):
        return jsonable(value.to_json())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "tolist"):  # numpy scalars and arrays, torch tensors
        return jsonable(value.tolist())
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r:.200}")


def _key(key: Any) -> str:
    plain = jsonable(key)
    if isinstance(plain, (dict, list)):
        raise TypeError(f"{key!r:.200} cannot be a JSON key")
    return plain if isinstance(plain, str) else str(plain)
