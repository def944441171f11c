"""The target's probability of every node of a tree, given the path to it; the target runs through transformers."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.target import Target
from eagle3lib.maths.trees import Trees

#: Nodes that are computed at once.
ROWS = 512


@torch.inference_mode()
def node_chances(target: Target, tokens: Tensor, trees: Trees, temperature: float) -> Tensor:
    """``[S, N]``: the probability of the node after its path, where the target samples at ``temperature``.

    One forward pass over the conversation and the nodes of many trees, each node seeing the conversation up to its
    start and its own ancestors. 0 for a node whose parent was not chosen.

    Raises:
        InputError: the target's window is shorter than the conversation.
    """
    model = target.model()
    window = getattr(model.config, "sliding_window", None)
    if "sliding_attention" in (getattr(model.config, "layer_types", None) or ()) and window < len(tokens):
        raise InputError(
            "the target's sliding_window", window, f"at least the conversation's {len(tokens)} tokens",
            "take shorter samples: further ones are not computed with a tree's own mask",
        )  # fmt: skip
    size = max(1, ROWS // trees.tokens.shape[1])
    parts = (slice(at, at + size) for at in range(0, len(trees.starts), size))
    return torch.cat([_chances(model, tokens, trees, part, temperature) for part in parts])


def _chances(model: torch.nn.Module, tokens: Tensor, trees: Trees, part: slice, temperature: float) -> Tensor:
    starts, nodes = trees.starts[part], trees.tokens[part]  # [S], [S, N]
    parents, depths = trees.parents[part], trees.depths[part]
    count, width = nodes.shape
    known = int(starts[-1]) + 2  # tokens of the conversation that any start knows
    place = known + torch.arange(count * width).view(count, width)  # of each node, among all rows
    above = torch.where(parents < 0, starts[:, None] + 1, place.gather(1, parents.clamp(min=0)))  # [S, N] row before
    length = known + count * width
    sees = torch.ones(length, length, dtype=torch.bool).tril_()
    sees[known:] = False
    sees[known:, :known] = (torch.arange(known) < (starts + 2)[:, None]).repeat_interleave(width, 0)
    for node in range(width):  # parents stand before children
        rows = place[:, node]
        own = parents[:, node] >= 0
        sees[rows[own], known:] = sees[above[own, node], known:]
        sees[rows, rows] = True
    bias = torch.zeros(length, length, dtype=model.dtype).masked_fill_(~sees, torch.finfo(model.dtype).min)
    ids = torch.cat([tokens[:known], nodes.flatten()])
    positions = torch.cat([torch.arange(known), (starts[:, None] + 1 + depths).flatten()])
    ids, positions, bias = (x.to(model.device) for x in (ids, positions, bias))
    hidden = model.get_decoder()(
        input_ids=ids[None], attention_mask=bias[None, None], position_ids=positions[None], use_cache=False
    ).last_hidden_state[0]  # [length, H], after the final norm
    chances = []
    for rows, words in zip(above.flatten().split(ROWS), nodes.flatten().split(ROWS), strict=True):
        logits = model.get_output_embeddings()(hidden[rows]).float() / temperature
        chances.append(logits.log_softmax(-1).gather(1, words[:, None].to(logits.device))[:, 0].exp().cpu())
    return torch.cat(chances).view(count, width).masked_fill_(parents == -2, 0.0)
