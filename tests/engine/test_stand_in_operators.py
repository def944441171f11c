"""The stand-in's operators against the textbook, what they refuse, and whom they are offered to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sgl_kernel = pytest.importorskip("eagle3_sglang_cpu.stand_ins.sgl_kernel")

HEADS, KV_HEADS, WIDTH, POOL = 6, 2, 8, 24


def textbook(q, keys, values, seen):
    """Softmax attention of one query head group at a time: q [new, H, D], keys and values [N, Hk, D]."""
    out = torch.empty_like(q)
    for head in range(HEADS):
        k, v = keys[:, head * KV_HEADS // HEADS], values[:, head * KV_HEADS // HEADS]
        scores = (q[:, head] @ k.T * WIDTH**-0.5).masked_fill(~seen, float("-inf"))
        out[:, head] = scores.softmax(-1) @ v
    return out


def batch(lengths, seed):
    """A cache in which each request's tokens lie in scattered slots."""
    draw = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, len(lengths) * POOL, KV_HEADS, WIDTH, generator=draw)
    slots = torch.randperm(len(lengths) * POOL, generator=draw).view(len(lengths), POOL).int()
    return draw, keys, values, slots


def extend(q, keys, values, slots, lengths, new, *, window=0, tree=None, **changed):
    out = torch.empty_like(q)
    new = torch.tensor(new)
    given = {"scale": WIDTH**-0.5, "cap": 0.0, "cross": False, "sinks": None} | changed
    torch.ops.sgl_kernel.extend_attention_cpu(
        q, None, None, out, keys, values, 1.0, 1.0, slots, torch.arange(len(lengths)), torch.tensor(lengths),
        new, new.cumsum(0) - new, int(new.max()), given["scale"], given["cap"], given["cross"], window,
        None, given["sinks"], tree, True,
    )  # fmt: skip
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, POOL), st.integers(1, POOL)), min_size=1, max_size=4),
    st.sampled_from([0, 3]),
    st.integers(0, 99),
)
def test_extend_attention_is_the_textbooks(requests, window, seed):
    lengths, new = [max(r) for r in requests], [min(r) for r in requests]
    draw, keys, values, slots = batch(lengths, seed)
    q = torch.randn(sum(new), HEADS, WIDTH, generator=draw)
    found, start = extend(q, keys, values, slots, lengths, new, window=window), 0
    for i, (n, m) in enumerate(zip(lengths, new, strict=True)):
        query, key = torch.arange(n - m, n)[:, None], torch.arange(n)
        seen = (key <= query) & ((key > query - window) if window else True)
        at = slots[i, :n].long()
        wanted = textbook(q[start : start + m], keys[at], values[at], seen)
        torch.testing.assert_close(found[start : start + m], wanted)
        start += m


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(5, POOL), min_size=1, max_size=4), st.integers(0, 99))
def test_tree_mask_is_obeyed(lengths, seed):
    new = 4
    draw, keys, values, slots = batch(lengths, seed)
    q = torch.randn(len(lengths) * new, HEADS, WIDTH, generator=draw)
    tree = (torch.rand(len(lengths), new, new, generator=draw) < 0.5) | torch.eye(new, dtype=torch.bool)
    found = extend(q, keys, values, slots, lengths, [new] * len(lengths), tree=tree.flatten())
    for i, n in enumerate(lengths):
        seen = torch.cat([torch.ones(new, n - new, dtype=torch.bool), tree[i]], 1)
        at, rows = slots[i, :n].long(), slice(i * new, (i + 1) * new)
        torch.testing.assert_close(found[rows], textbook(q[rows], keys[at], values[at], seen))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, POOL), min_size=1, max_size=4), st.sampled_from([0, 3]), st.integers(0, 99))
def test_decode_stores_and_attends(lengths, window, seed):
    draw, keys, values, slots = batch(lengths, seed)
    q = torch.randn(len(lengths), HEADS, WIDTH, generator=draw)
    k, v = torch.randn(2, len(lengths), KV_HEADS, WIDTH, generator=draw)
    newest = torch.stack([slots[i, n - 1] for i, n in enumerate(lengths)]).long()
    found = torch.empty_like(q)
    torch.ops.sgl_kernel.decode_attention_cpu(
        q, keys, values, 1.0, 1.0, found, k, v, newest, torch.empty(0), slots, torch.arange(len(lengths)),
        torch.tensor(lengths), WIDTH**-0.5, 0.0, False, window, None, None,
    )  # fmt: skip
    assert torch.equal(keys[newest], k) and torch.equal(values[newest], v)
    for i, n in enumerate(lengths):
        at = slots[i, max(0, n - window) if window else 0 : n].long()
        seen = torch.ones(1, len(at), dtype=torch.bool)
        torch.testing.assert_close(found[i : i + 1], textbook(q[i : i + 1], keys[at], values[at], seen))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cap": 30.0}, "logit cap"),
        ({"cross": True}, "cross attention"),
        ({"sinks": torch.zeros(HEADS)}, "sinks"),
        ({"tree": torch.ones(5, dtype=torch.bool)}, "tree mask of 5 elements"),
    ],
)
def test_what_it_cannot_do_is_refused(changed, said):
    _, keys, values, slots = batch([6], 0)
    with pytest.raises(NotImplementedError, match=said):
        extend(torch.randn(4, HEADS, WIDTH), keys, values, slots, [6], [4], **changed)


def test_eight_bit_cache_is_refused():
    _, keys, values, slots = batch([6], 0)
    keys, values = keys.to(torch.float8_e4m3fn), values.to(torch.float8_e4m3fn)
    with pytest.raises(NotImplementedError, match="float8"):
        extend(torch.randn(4, HEADS, WIDTH), keys, values, slots, [6], [4])


def test_a_draft_without_its_parent_is_never_linked():
    """Candidate 5 of group 2 grew from candidate 1, which was not kept."""
    nodes, long = 3, torch.long
    mask, positions = torch.ones(nodes * nodes, dtype=torch.bool), torch.zeros(nodes, dtype=long)
    links = torch.full((3, 1, nodes), -1, dtype=long)
    parents, kept = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 5]])
    sgl_kernel.build_tree_kernel_efficient_cpu(
        parents, kept, torch.tensor([10]), mask, positions, *links, 2, 2, nodes, 1
    )
    assert links[1].tolist() == [[1, -1, -1]] and links[2].tolist() == [[-1, -1, -1]]
    assert positions.tolist() == [10, 11, 11]
    assert mask.view(nodes, nodes).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]


def test_cache_slots_move_in_every_layer_even_where_they_overlap():
    layers = [torch.arange(12.0).view(6, 2), torch.arange(18.0, dtype=torch.float64).view(6, 3)]
    pointers = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    strides = torch.tensor([layer.stride(0) * layer.element_size() for layer in layers])
    source, target = torch.tensor([2, 4]), torch.tensor([1, 2])
    expected = [layer.clone() for layer in layers]
    for layer in expected:
        layer[target] = layer[source].clone()
    sgl_kernel.copy_all_layer_kv_cache_cpu(pointers, strides, target, source)
    assert all(torch.equal(a, b) for a, b in zip(layers, expected, strict=True))


@pytest.mark.parametrize(("engine", "offered"), [("0", False), ("1", True)])
def test_stand_ins_are_offered_to_the_cpu_engine_alone(engine, offered):
    code = "from importlib.util import find_spec as f; print(bool(f('sgl_kernel')), bool(f('torchvision')))"
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": engine}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(offered)] * 2
