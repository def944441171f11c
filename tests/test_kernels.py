"""The fast kernels against plain ones, and against transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import forward
from eagle3lib.maths.kernels import (
    apply_rotary_pos_emb,
    chain_attention,
    lm_head_argmax,
    merge_attention_states,
    rms_norm,
    rotary_tables,
)
from eagle3lib.maths.wiring import Wiring
from tests.plain_attention import plain_chain_attention
from tests.test_draft_against_trainers import random_draft


def random(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 20), first=st.integers(0, 12), depth=st.integers(1, 5),
    kv_heads=st.sampled_from([1, 2]),
    group=st.sampled_from([1, 3]), window=st.none() | st.integers(1, 15), seed=st.integers(0, 99),
    scale=st.sampled_from([0.1, 1.0, 12.0]),
)  # fmt: skip
def test_fast_attention_is_plain_attention(
    rows: int, first: int, depth: int, kv_heads: int, group: int, window: int | None, seed: int, scale: float
) -> None:
    q = random(seed, rows, kv_heads * group, 8, scale=scale)
    keys = [
        random(seed + 1, first + rows, kv_heads, 8),
        *(random(seed + d, rows, kv_heads, 8) for d in range(2, depth + 1)),
    ]
    values = [random(seed + 9, *key.shape) for key in keys]
    plain = plain_chain_attention(q, keys, values, first, window)
    torch.testing.assert_close(chain_attention(q, keys, values, first, window), plain, rtol=1e-4, atol=1e-5)


def test_windows_over_many_blocks() -> None:
    q, k, v = random(0, 700, 2, 8), random(1, 730, 1, 8), random(2, 730, 1, 8)
    plain = plain_chain_attention(q, [k], [v], 30, window=300)
    torch.testing.assert_close(chain_attention(q, [k], [v], 30, window=300), plain, rtol=1e-4, atol=1e-5)


def test_bfloat16_stays_near_float32() -> None:
    q, k, v = random(0, 40, 4, 16), random(1, 40, 2, 16), random(2, 40, 2, 16)
    deeper = random(3, 40, 2, 16)
    exact = chain_attention(q, [k, deeper], [v, deeper], 0)
    half = [x.bfloat16() for x in (q, k, v, deeper)]
    found = chain_attention(half[0], [half[1], half[3]], [half[2], half[3]], 0)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.05)


@settings(deadline=None)
@given(st.integers(0, 99))
def test_merging_parts_of_a_softmax(seed: int) -> None:
    scores, values = random(seed, 3, 2, 7, scale=3), random(seed + 1, 3, 2, 7, 4)
    whole = (scores.softmax(-1)[..., None] * values).sum(-2)
    parts = []
    for a, b in ((0, 1), (1, 5), (5, 7)):
        some = scores[..., a:b]
        parts.append(((some.softmax(-1)[..., None] * values[..., a:b, :]).sum(-2), some.logsumexp(-1)))
    torch.testing.assert_close(merge_attention_states(parts), whole)


def test_head_in_pieces() -> None:
    x, weight = random(0, 50, 8), random(1, 30, 8)
    best, gap = lm_head_argmax(x, weight, rows=7)
    top = (x @ weight.T).topk(2)
    assert torch.equal(best, top.indices[:, 0])
    torch.testing.assert_close(gap, top.values[:, 0] - top.values[:, 1])


def test_rms_norm_of_large_values_in_bfloat16() -> None:
    x = random(0, 4, 64, scale=300).bfloat16()
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(rms_norm(x, torch.ones(64), 1e-6).double(), exact, rtol=5e-3, atol=5e-3)


SCALINGS = {
    "plain": None,
    "legacy spelling": {"type": "linear", "factor": 4.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "multi-axis": {"type": "mrope", "mrope_section": [2, 3, 3]},
}


@pytest.mark.parametrize("name", SCALINGS)
def test_rotation_depends_on_distances_only(name: str) -> None:
    cos, sin = rotary_tables(1e4, SCALINGS[name], 16, torch.arange(60), max_positions=128)
    q, k = apply_rotary_pos_emb(random(0, 60, 1, 16), cos, sin), apply_rotary_pos_emb(random(0, 60, 1, 16), cos, sin)
    assert torch.equal(q, k)
    same = random(3, 1, 1, 16).expand(60, 1, 16)
    turned = apply_rotary_pos_emb(same, cos, sin)[:, 0]
    scores = turned @ turned.T
    torch.testing.assert_close(scores[5, 9], scores[40, 44])
    assert (scores[0, 1] - scores[0, 30]).abs() > 1e-3


def test_linear_scaling_stretches_positions() -> None:
    scaled = rotary_tables(1e4, SCALINGS["linear"], 16, torch.arange(8) * 4, 128)[0]
    torch.testing.assert_close(scaled, rotary_tables(1e4, None, 16, torch.arange(8), 128)[0])


def test_unknown_scaling_is_named() -> None:
    with pytest.raises(InputError, match="rope_scaling.*spiral"):
        rotary_tables(1e4, {"rope_type": "spiral"}, 16, torch.arange(4), 128)


def test_the_head_finds_the_two_best_in_any_vocabulary() -> None:
    for vocabulary in (2, 127, 128, 129, 1000):
        x, weight = random(vocabulary, 9, 8), random(1, vocabulary, 8)
        best, gap = lm_head_argmax(x, weight)
        top = (x @ weight.T).topk(2)
        assert torch.equal(best, top.indices[:, 0])
        torch.testing.assert_close(gap, top.values[:, 0] - top.values[:, 1])


class Largest(TorchDispatchMode):
    """Remembers the most values that any operator returned in one tensor."""

    values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            self.values = max(self.values, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return out


@pytest.mark.parametrize("window", [None, 300])
def test_no_mask_over_all_keys_and_no_logits_of_all_positions(window: int | None) -> None:
    tokens, depths, draw = 1600, 3, torch.Generator().manual_seed(0)
    draft = random_draft()
    states = torch.randn(tokens, draft.num_aux_hidden_states, draft.width, generator=draw)
    ids = torch.randint(len(draft.own_embedding), (tokens,), generator=draw)
    draft = replace(draft, lm_head=random(0, 4096, draft.width), d2t=torch.zeros(4096, dtype=torch.int64))
    with Largest() as largest:
        forward(draft, Wiring(boundaries=(0, 3, 5), window=window), states, ids, depths)
    assert 0 < largest.values <= 512 * 4096 < tokens * tokens
