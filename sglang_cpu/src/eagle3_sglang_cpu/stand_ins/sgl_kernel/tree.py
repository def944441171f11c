"""Building the tree of draft tokens and verifying it greedily, one small tree at a time.

Node 0 is the last verified token; nodes 1 to N - 1 are the drafts kept. A tree is stored as first child
(``retrive_next_token``) and next sibling, -1 for none; ``retrive_index[b, i] = b * N + i`` numbers nodes over
the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FULL_MASK, _QLEN_ONLY = 0, 1  # sglang.kernels.ops.speculative.spec_tree.TreeMaskMode


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links. Twin: ``sgl_build_tree_kernel_triton`` in ``spec_tree.py``.

    Args:
        parent_list: int64 ``[B, *]``; entry ``c // topk`` is the candidate that candidate ``c`` grew from,
            and ``c // topk == 0`` says that it grew from node 0. Empty where one step drafts.
        selected_index: int64 ``[B, N - 1]``, the candidates kept, best parents first.
        tree_mask: bool, flat: ``[B, N, N]`` of ancestors (``QLEN_ONLY``) or ``N x (length + N)`` a request,
            of which the columns of the draft tokens are written (``FULL_MASK``).
        positions: ``[B * N]``; the links ``[B, N]`` come filled with -1.
    """
    if tree_mask_mode not in (_FULL_MASK, _QLEN_ONLY):
        raise NotImplementedError(f"sgl_kernel stand-in: tree mask mode {tree_mask_mode}, expected 0 or 1")
    nodes, mask_start = draft_token_num, 0
    for b, length in enumerate(verified_seq_len.tolist()):
        grew_from = parent_list[b].tolist() if parent_list.numel() else []
        parents = _parents(selected_index[b].tolist(), grew_from, topk)
        ancestors = torch.zeros(nodes, nodes, dtype=torch.bool)
        first_child, sibling, depths = [-1] * nodes, [-1] * nodes, [0] * nodes
        for node in reversed(range(1, nodes)):
            if (parent := parents[node]) is not None:
                sibling[node], first_child[parent] = first_child[parent], node
        ancestors[:, 0] = True
        for node in range(1, nodes):
            walk: int | None = node
            while walk:
                ancestors[node, walk] = True
                depths[node] += 1
                walk = parents[walk]
        positions.view(-1)[b * nodes : (b + 1) * nodes] = torch.tensor(depths) + length
        retrive_index[b] = torch.arange(b * nodes, (b + 1) * nodes)
        retrive_next_token[b] = torch.tensor(first_child)
        retrive_next_sibling[b] = torch.tensor(sibling)

        width = nodes if tree_mask_mode == _QLEN_ONLY else length + nodes
        mask = tree_mask.view(-1)[mask_start : mask_start + nodes * width].view(nodes, width)
        mask[:, width - nodes :] = ancestors
        mask_start += nodes * width


def _parents(selected: list[int], grew_from: list[int], topk: int) -> list[int | None]:
    """The parent node of each node.

    None for node 0, and for a draft that was kept without its parent, which equal scores can bring about: no
    link leads to it, so that it is never accepted.
    """
    node_of = {candidate: node for node, candidate in reversed(list(enumerate(selected, start=1)))}
    groups = [candidate // topk for candidate in selected]
    return [None, *(0 if group == 0 else node_of.get(grew_from[group]) for group in groups)]


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down from node 0 for as long as some child is what the target says.

    Twin: ``verify_tree_greedy_triton`` in ``spec_tree.py``.

    Args:
        predicts: int32 ``[B * N]``, written at accepted nodes: the token that follows.
        accept_index: int32 ``[B, depth + 1]``, comes filled with -1, gets the accepted nodes' numbers.
        accept_token_num: int32 ``[B]``, gets the number of accepted drafts, the bonus token not counted.
        candidates: ``[B, N]``, the tokens of the nodes; ``target_predict`` ``[B, N]``, the target's next
        token there.
    """
    said, predicts = target_predict.view(-1).tolist(), predicts.view(-1)
    most = accept_index.shape[1] - 1
    for b, tokens in enumerate(candidates.tolist()):
        number = retrive_index[b].tolist()
        child, sibling = retrive_next_token[b].tolist(), retrive_next_sibling[b].tolist()
        path = [0]
        while len(path) <= most:
            wanted, node = said[number[path[-1]]], child[path[-1]]
            while node != -1 and tokens[node] != wanted:
                node = sibling[node]
            if node == -1:
                break
            path.append(node)
        accepted = [number[node] for node in path]
        accept_index[b, : len(path)] = torch.tensor(accepted)
        accept_token_num[b] = len(path) - 1
        predicts[accepted] = torch.tensor([said[i] for i in accepted], dtype=predicts.dtype)
