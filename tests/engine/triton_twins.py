"""Run as a script: the stand-in's operators and SGLang's own Triton kernels on the same random inputs.

The kernels run on the CPU under Triton's interpreter (``TRITON_INTERPRET=1``). Prints one JSON object: for
each operator, how many random cases were equal and how many were not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import torch
from sglang.kernels.ops.speculative import cache_locs, eagle, multi_layer_eagle, spec_tree
from sglang.srt.mem_cache import allocation
from sglang.srt.speculative.eagle_utils import organize_draft_results
from sglang.srt.speculative.spec_utils import select_top_k_tokens
from torch import Tensor

import sgl_kernel

TREES, TABLES, VOCAB, POOL = 200, 20, 12, 64
#: batch, topk, steps, draft tokens
SHAPES = [(1, 1, 3, 4), (2, 1, 5, 6), (3, 4, 3, 8), (2, 8, 2, 16), (2, 2, 4, 10)]
MODES = (spec_tree.TreeMaskMode.QLEN_ONLY, spec_tree.TreeMaskMode.FULL_MASK)

outcomes: dict[str, Counter[str]] = {}


def compare(name: str, ours: Callable[..., object], theirs: Callable[..., object], *written: Tensor) -> None:
    """Call both on copies of the tensors they write and count whether these end up equal."""
    results = []
    for function in (ours, theirs):
        copies = [tensor.clone() for tensor in written]
        function(*copies)
        results.append(copies)
    equal = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    outcomes.setdefault(name, Counter())["equal" if equal else "different"] += 1


def draft_tree(batch: int, topk: int, steps: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """SGLang's own choice of candidates from random drafts: parents, candidates kept, their tokens."""
    scores, hidden, seen = None, torch.zeros(batch, 1), ([], [], [])
    for step in range(steps):
        rows = batch if step == 0 else batch * topk
        chances, ids = torch.rand(rows, topk).softmax(-1), torch.randint(0, VOCAB, (rows, topk))
        _, hidden, scores, info = select_top_k_tokens(step, chances, ids, hidden, scores, topk)
        for collected, part in zip(seen, info, strict=True):
            collected.append(part)
    return organize_draft_results(*seen, tokens)


def check_tree(case: int) -> None:
    batch, topk, steps, tokens = SHAPES[case % len(SHAPES)]
    parents, kept, drafted = draft_tree(batch, topk, steps, tokens)
    lengths, mode = torch.randint(3, 20, (batch,)), MODES[case // len(SHAPES) % 2]
    width = tokens * batch * tokens + (int(lengths.sum()) * tokens if mode == MODES[1] else 0)
    mask, positions = torch.ones(width, dtype=torch.bool), torch.zeros(batch * tokens, dtype=torch.long)
    links = torch.full((3, batch, tokens), -1, dtype=torch.long)

    def build(function: Callable[..., None]) -> Callable[..., None]:
        return lambda mask, positions, links: function(
            parents, kept, lengths, mask, positions, *links, topk, steps, tokens, mode
        )

    ours = build(sgl_kernel.build_tree_kernel_efficient_cpu)
    compare("build_tree", ours, build(spec_tree.sgl_build_tree_kernel_triton), mask, positions, links)
    ours(mask, positions, links)

    candidates = torch.cat([torch.randint(0, VOCAB, (batch, 1)), drafted], 1)
    said = torch.randint(0, VOCAB, (batch, tokens))
    for b, node in torch.nonzero(links[1] >= 0).tolist():  # most nodes are followed by their first child
        if torch.rand(()) < 0.7:
            said[b, node] = candidates[b, links[1][b, node]]

    def verify(function: Callable[..., None]) -> Callable[..., None]:
        return lambda predicts, index, number: function(predicts, index, number, candidates, *links, said)

    predicts = torch.zeros(batch * tokens, dtype=torch.int32)
    index = torch.full((batch, steps + 1), -1, dtype=torch.int32)
    number = torch.zeros(batch, dtype=torch.int32)
    ours, theirs = verify(sgl_kernel.verify_tree_greedy_cpu), verify(spec_tree.verify_tree_greedy_triton)
    compare("verify_tree", ours, theirs, predicts, index, number)


def check_bookkeeping() -> None:
    batch, topk, steps = int(torch.randint(1, 5, ())), 2, 3
    table = torch.randperm(8 * POOL).view(8, POOL).int()
    rows, start = torch.randperm(8)[:batch], torch.randint(0, 20, (batch,))
    end = start + torch.randint(1, 10, (batch,))
    slots = torch.zeros(int((end - start).sum()), dtype=torch.long)
    grid = (batch,)
    compare(
        "assign_req_to_token_pool",
        lambda t: sgl_kernel.assign_req_to_token_pool_cpu(rows, t, start, end, slots + 7, POOL),
        lambda t: allocation.assign_req_to_token_pool[grid](rows, t, start, end, slots + 7, POOL, 4),
        table,
    )
    compare(
        "assign_extend_cache_locs",
        lambda out: sgl_kernel.assign_extend_cache_locs_cpu(rows, table, start, end, out, POOL),
        lambda out: cache_locs.assign_extend_cache_locs[grid](rows, table, start, end, out, POOL, 4),
        slots,
    )
    draft_slots = torch.zeros(batch * topk * steps, dtype=torch.long)
    ours = sgl_kernel.assign_draft_cache_locs_contiguous_cpu
    theirs = cache_locs.assign_draft_cache_locs_contiguous
    compare(
        "assign_draft_cache_locs_contiguous",
        lambda out: ours(rows, table, end, out, POOL, topk, steps),
        lambda out: theirs[grid](rows, table, end, out, POOL, topk, steps),
        draft_slots,
    )
    check_accepted(batch, steps)
    check_draft_table(table, rows, end, topk, steps)


def check_accepted(batch: int, steps: int) -> None:
    tokens, lens = torch.randint(0, VOCAB, (batch * (steps + 1),)), torch.randint(1, steps + 2, (batch,))
    compare(
        "fill_bonus_tokens",
        lambda out: sgl_kernel.fill_bonus_tokens_cpu(tokens, lens, out, steps + 1),
        lambda out: eagle.fill_bonus_tokens[(batch,)](tokens, lens, out, steps + 1),
        torch.zeros(batch, dtype=torch.long),
    )
    size = batch * (steps + 1)
    accepted = torch.where(torch.rand(size) < 0.5, torch.arange(size), -1)
    compare(
        "fill_accept_out_cache_loc",
        lambda out: sgl_kernel.fill_accept_out_cache_loc_cpu(accepted, tokens, out),
        lambda out: eagle.fill_accept_out_cache_loc[(size,)](accepted, tokens, out, 32),
        torch.zeros(size, dtype=torch.long),
    )
    new, starts = torch.randint(0, VOCAB, (batch,)), lens.cumsum(0) - lens
    compare(
        "rotate_input_ids",
        lambda ids: sgl_kernel.rotate_input_ids_cpu(ids, starts, lens, new),
        lambda ids: multi_layer_eagle.rotate_input_ids_kernel[(batch,)](ids, starts, lens, new, None, 8),
        tokens,
    )


def check_draft_table(table: Tensor, rows: Tensor, lengths: Tensor, topk: int, steps: int) -> None:
    """Ours keeps a table, theirs a flat list a step: the slots that each branch reads are to be equal."""
    batch = len(rows)
    branches, total = batch * topk, int(lengths.sum()) * topk
    size = total + branches * steps

    def ours(out: Tensor) -> None:
        made = sgl_kernel.build_draft_decode_metadata_cpu(table, rows, lengths, topk, steps, POOL)
        for step in range(1, steps + 1):
            reads = [made[i, : int(lengths[i // topk]) + step] for i in range(branches)]
            out[step - 1, : total + branches * step] = torch.cat(reads)

    def theirs(out: Tensor) -> None:
        ends = torch.zeros(steps, branches + 1, dtype=torch.int32)
        positions = lengths.repeat_interleave(topk)
        cache_locs.generate_draft_decode_kv_indices[(steps, batch, topk)](
            rows, table, lengths, out, ends, positions, POOL, size, branches + 1, 4, 4, 8, 1
        )

    compare("build_draft_decode_metadata", ours, theirs, torch.zeros(steps, size, dtype=torch.int32))


if __name__ == "__main__":
    torch.manual_seed(0)
    for case in range(TREES):
        check_tree(case)
    for _ in range(TABLES):
        check_bookkeeping()
    print(json.dumps(outcomes))
