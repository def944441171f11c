"""Files of tensors: safetensors, or a pickle of plain tensors, gzipped or not; numpy arrays."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open

from eagle3lib.errors import InputError

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
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
        data = torch.load(_unpacked(path), map_location="cpu", weights_only=True)
    except DAMAGE as error:
        found = f"a damaged or unsafe file ({first_line(error)})"
        raise InputError(path.name, found, "a file of plain tensors") from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InputError(path.name, f"a {type(data).__name__}", "a mapping of names to tensors")
    return data, {key: value for key, value in data.items() if isinstance(value, str)}


def read_tensor(path: Path) -> torch.Tensor:
    """The one tensor of a file: safetensors, a pickled tensor, or a numpy array."""
    if path.suffix == ".safetensors":
        tensors, _ = read_tensors(path)
        value: Any = next(iter(tensors.values())) if len(tensors) == 1 else tensors
    else:
        try:
            if path.suffix == ".npy":
                value = torch.from_numpy(numpy.load(path, allow_pickle=False))
            else:
                value = torch.load(path, map_location="cpu", weights_only=True)
        except DAMAGE as error:
            raise InputError(path.name, first_line(error), "one plain tensor, named by its stage") from None
    if not isinstance(value, torch.Tensor):
        raise InputError(path.name, f"a {type(value).__name__}", "one plain tensor, named by its stage")
    return value


def _unpacked(path: Path) -> Path | io.BytesIO:
    if path.suffix != ".gz":
        return path
    with gzip.open(path) as file:
        data = file.read(MAX_UNPACKED + 1)
    if len(data) > MAX_UNPACKED:
        raise InputError(path.name, "more than 8 GB unpacked", "one sample a file")
    return io.BytesIO(data)
