"""Files of tensors: safetensors, or a pickle of plain tensors, gzipped or not; numpy arrays."""

from __future__ import annotations

import gzip
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from eagle3lib.errors import InputError
from eagle3lib.reading.files import replacing

#: Far above any sample (32k tokens of four 7168-wide states are 2 GB in bf16).
MAX_UNPACKED = 8 << 30
#: What torch and safetensors raise for damaged files and for pickles of other things than tensors.
DAMAGE = (SafetensorError, pickle.UnpicklingError, RuntimeError, ValueError, TypeError, LookupError, AttributeError,
          ArithmeticError, AssertionError, ImportError, EOFError, OSError)  # fmt: skip


def first_line(error: Exception) -> str:
    """What went wrong, in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """``(tensors by name, metadata)``. Pickles are read by torch's weights-only unpickler.

    Raises:
        InputError: the file is truncated, damaged, or holds other things than a mapping with tensors.
    """
    data, metadata = _load(path, "a file of plain tensors")
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InputError(path.name, f"a {type(data).__name__}", "a mapping of names to tensors")
    return data, metadata or {key: value for key, value in data.items() if isinstance(value, str)}


def read_tensor(path: Path) -> torch.Tensor:
    """The one tensor of a file: safetensors, a pickled tensor, or a numpy array."""
    expected = "one plain tensor, named by its stage"
    value, _ = _load(path, expected)
    if path.suffix == ".safetensors" and len(value) == 1:
        (value,) = value.values()
    if not isinstance(value, torch.Tensor):
        raise InputError(path.name, f"a {type(value).__name__}", expected)
    return value


def write_tensors(path: str | Path, tensors: Mapping[str, torch.Tensor | None], metadata: Mapping[str, Any]) -> Path:
    """Write a safetensors file, under its name only when it is whole; what is None is left out."""
    given = {name: value.contiguous() for name, value in tensors.items() if value is not None}
    texts = {name: str(value) for name, value in metadata.items() if value is not None}
    with replacing(Path(path)) as partial:
        save_file(given, partial, texts)
    return Path(path)


def _load(path: Path, expected: str) -> tuple[Any, dict[str, str]]:
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
        if path.suffix == ".npy":
            return torch.from_numpy(numpy.load(path, allow_pickle=False)), {}
        if path.suffix != ".gz":
            return torch.load(path, map_location="cpu", weights_only=True), {}
        with gzip.open(path) as file:
            data = file.read(MAX_UNPACKED + 1)
        if len(data) > MAX_UNPACKED:
            raise InputError(path.name, "more than 8 GB unpacked", "one sample a file")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True), {}
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(path.name, f"a damaged or unsafe file ({first_line(error)})", expected) from None
