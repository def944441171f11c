"""Where and in which precision numbers are computed, and that large tables are neither copied nor read twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle3lib.errors import InputError
from eagle3lib.maths.device import resolve_device, resolve_dtype
from eagle3lib.maths.kernels import lm_head_logits
from eagle3lib.maths.target import Target
from tests.tiny import tiny_draft, tiny_target


def test_auto_is_a_gpu_in_bf16_or_the_cpu_in_fp32() -> None:
    device = resolve_device("auto")
    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert resolve_dtype("float16", device) == resolve_dtype(torch.float16, device) == torch.float16


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="device of this machine"):
        resolve_device("nowhere")
    for name in ("int8", "float64", ""):
        with pytest.raises(InputError, match="auto or one of float32"):
            resolve_dtype(name, torch.device("cpu"))


def test_a_target_is_read_once_and_anew_when_its_files_change(tmp_path: Path) -> None:
    tiny_target(tmp_path / "target")
    first, second = (Target.open(tmp_path / "target", dtype) for dtype in ("float32", "bfloat16"))
    assert first.lm_head.data_ptr() == second.lm_head.data_ptr() and second.norm.dtype == torch.bfloat16
    tiny_draft(tmp_path / "draft", tiny_target(tmp_path / "target", vocab=64))
    other = Target.open(tmp_path / "target", "bfloat16")
    assert len(other.embedding) == 64
    draft = other.load_draft(tmp_path / "draft")
    assert draft.fc.weight.dtype == torch.bfloat16 and draft.target_embedding.data_ptr() == other.embedding.data_ptr()


def test_logits_of_a_head_in_another_precision_are_those_of_its_copy() -> None:
    x, weight = torch.randn(5, 16), torch.randn(100, 16).bfloat16()
    torch.testing.assert_close(lm_head_logits(x, weight, values=16 * 7), x @ weight.float().T)
    assert torch.equal(lm_head_logits(x, weight), x @ weight.float().T)
