"""Where to compute and in which precision: what the parameters ``device`` and ``dtype`` of a notebook mean."""

from __future__ import annotations

import torch

from eagle3lib.errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """``auto``: a GPU where there is one, else the CPU. Raises ``InputError`` for a device that is not here."""
    if str(name) == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without CUDA
        reason = str(error).splitlines()[0][:120]
        cure = "cpu works everywhere, auto takes a GPU where there is one"
        raise InputError("device", f"{name} ({reason})", "a device of this machine", cure) from None


def resolve_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """``auto``: bfloat16 on a GPU, float32 on the CPU. Raises ``InputError`` for any other name than those here."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = DTYPES.get(name, name)
    if not isinstance(dtype, torch.dtype):
        raise InputError("dtype", name, f"auto or one of {', '.join(DTYPES)}")
    return dtype
