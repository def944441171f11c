"""The trees that SGLang drafts from many starts at once, and how many of their drafts the target accepts.

At every depth the ``topk`` best beams go on, by the product of their probabilities; of all nodes the best
``num_draft_tokens - 1`` are verified. The i-th best beam takes the state of its parent, but in SGLang it attends to the
keys that the i-th beams of earlier depths wrote: from depth 3 on a node may attend to keys of a chain that is not its
own. That is copied here, since it decides what is served; with ``ancestors=True`` each node attends to the keys of its
own ancestors, as in EAGLE-2. ``node_probabilities`` gives the target's probability of every node.

Growth: SGLang 0.5.23, ``srt/speculative/eagle_worker_v2.py`` (``draft_forward``), ``spec_utils.py``
(``select_top_k_tokens``), ``eagle_utils.py`` (``organize_draft_results``). Paper: EAGLE-2, arXiv 2406.16858.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import KVCache, before_head, combine, decoder_layer, depth_states, rotary
from eagle3lib.maths.draft_weights import Draft, embed, embedding_table, head_weight, target_ids
from eagle3lib.maths.kernels import chain_attention, lm_head_logits, rms_norm
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring

#: Beams of all starts, or nodes of their trees, that are computed at once: bounds the memory of their logits.
ROWS = 512


@dataclass(frozen=True)
class Trees:
    """One tree for each start, on the CPU; ``N = num_draft_tokens - 1`` nodes, parents before children.

    ``starts [S]``: start t knows token t + 1. ``tokens [S, N]``: target ids. ``parents [S, N]``: the parent's index
    among the nodes, -1 below the root, -2 where the parent itself was not chosen. ``depths [S, N]``: from 1.
    ``margins [S]``: the smallest gap in log score between a node that was chosen and one that was not.
    """

    starts: Tensor
    tokens: Tensor
    parents: Tensor
    depths: Tensor
    margins: Tensor

    def runs(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """``(runs, sure)``, both ``[S]``: how many drafts on the best path equal the tokens that followed; whether the
        conversation is long enough to know.

        Source: greedy verification, SGLang ``verify_tree_greedy``; siblings never hold the same token.
        """
        index = self.starts[:, None] + 1 + self.depths  # [S, N]
        truth = tokens[index.clamp(max=len(tokens) - 1)]
        equal = (self.tokens == truth) & (index < len(tokens))
        accepted = equal & (self.parents == -1)
        deepest = int(self.depths.max())
        for _ in range(deepest - 1):
            accepted = accepted | (equal & (self.parents >= 0) & accepted.gather(1, self.parents.clamp(min=0)))
        runs = accepted.sum(1)
        return runs, (runs == deepest) | (self.starts + 2 + runs < len(tokens))


def tree_nodes(num_steps: int, topk: int) -> int:
    """Nodes among which a tree's drafts are chosen (``organize_draft_results`` takes the best of these)."""
    return topk + (num_steps - 1) * topk * topk


@torch.inference_mode()
def build_tree(
    draft: Draft, wiring: Wiring, states: Tensor, tokens: Tensor, setting: tuple[int, int, int], first: int = 0,
    ancestors: bool = False,
) -> Trees:  # fmt: skip
    """The tree of ``setting`` (num_steps, topk, num_draft_tokens) from every start of one sample.

    Arguments otherwise as in ``draft.forward``. ``ancestors``: a node attends to the keys of its own ancestors.

    Raises:
        InputError: as ``draft.forward``, or the setting asks for more nodes than the tree has.
    """
    num_steps, topk, num_draft_tokens = setting
    nodes = tree_nodes(num_steps, topk)
    if min(setting) < 1 or not 2 <= num_draft_tokens <= nodes + 1:
        found, expected = "/".join(map(str, setting)), f"2 to {nodes + 1} draft tokens for these steps and topk"
        raise InputError("setting num_steps/topk/num_draft_tokens", found, expected)
    ids, vocab = target_ids(draft, wiring), len(embedding_table(draft, wiring))
    if ids is not None and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        found = f"target ids from {int(ids.min())} to {int(ids.max())}"
        raise InputError("d2t", found, f"ids within the {vocab} rows of the embedding", "see what 01 says of the map")
    kv_caches = [KVCache() for _ in draft.layers]
    positions = torch.arange(len(tokens) + num_steps, device=draft.norm.device)
    hidden = combine(draft, wiring, states)
    (state,) = depth_states(draft, wiring, hidden, tokens, 1, first, kv_caches=kv_caches)  # [S, H]
    builder = _TreeBuilder(draft, wiring, kv_caches, setting, ancestors, rotary(draft, wiring, positions))
    size = max(1, ROWS // topk)
    parts = [builder.from_rows(first + i * size, part) for i, part in enumerate(state.split(size))]
    starts = torch.arange(first, first + len(state))
    return Trees(starts, *(torch.cat(part).cpu() for part in zip(*parts, strict=True)))


@dataclass(frozen=True)
class _TreeBuilder:
    """What the trees of one sample share: keys and values of depth 1, and the rotary tables."""

    draft: Draft
    wiring: Wiring
    kv_caches: list[KVCache]
    setting: tuple[int, int, int]
    ancestors: bool
    cos_sin: tuple[Tensor, Tensor]

    def from_rows(self, row: int, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens, parents, depths ``[S, N]`` and margins ``[S]`` for starts ``row ..`` with states ``[S, H]``."""
        num_steps, topk, num_draft_tokens = self.setting
        count = len(state)
        scores, tokens, margin = self._topk_drafts(state)  # [S, topk]
        beams = torch.arange(topk, device=state.device).expand(count, topk)  # the node of each beam
        nodes = [(scores, tokens, torch.full_like(tokens, -1), torch.ones_like(tokens))]
        hidden, beam_caches = state.repeat_interleave(topk, 0), [KVCache() for _ in self.kv_caches]
        for depth in range(2, num_steps + 1):
            hidden = self._next_depth(row, depth, tokens, hidden, beam_caches)  # [S * topk, H]
            probs, children, gap = self._topk_drafts(hidden)  # [S * topk, topk]
            child_scores = (scores[..., None] * probs.view(count, topk, topk)).flatten(1)  # [S, topk * topk]
            children = children.view(count, -1)
            parents = beams.repeat_interleave(topk, 1)
            margin = torch.minimum(margin, gap.view(count, topk).amin(1))
            first_node = tree_nodes(depth - 1, topk)  # of this depth
            nodes.append((child_scores, children, parents, torch.full_like(children, depth)))
            if depth == num_steps:
                break
            scores, chosen, gap = _topk_with_margin(child_scores, topk)
            margin = torch.minimum(margin, gap)
            beams, tokens, source = first_node + chosen, children.gather(1, chosen), chosen // topk
            flat = (source + topk * torch.arange(count, device=source.device)[:, None]).flatten()
            hidden = hidden[flat]
            if self.ancestors:
                for cache in beam_caches:
                    cache.keys, cache.values = [k[flat] for k in cache.keys], [v[flat] for v in cache.values]
        scores, tokens, parents, depths = (torch.cat(part, 1) for part in zip(*nodes, strict=True))
        _, chosen, gap = _topk_with_margin(scores, num_draft_tokens - 1)
        chosen = chosen.sort(1).values  # [S, N]
        index = torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen)
        place = torch.full_like(tokens, -2).scatter_(1, chosen, index)
        parents = parents.gather(1, chosen)
        parents = torch.where(parents < 0, parents, place.gather(1, parents.clamp(min=0)))
        return tokens.gather(1, chosen), parents, depths.gather(1, chosen), torch.minimum(margin, gap)

    def _next_depth(self, row: int, depth: int, tokens: Tensor, hidden: Tensor, beam_caches: list[KVCache]) -> Tensor:
        """The states ``[S * topk, H]`` of the beams' next depth."""
        draft, wiring = self.draft, self.wiring
        count, topk = tokens.shape
        if wiring.norm_output:
            hidden = rms_norm(hidden, draft.norm, draft.eps)
        embeds = embed(draft, wiring, tokens.flatten())
        at = row + depth - 1
        cos_sin = tuple(table[at : at + count].repeat_interleave(topk, 0) for table in self.cos_sin)
        for i, (prefix, own) in enumerate(zip(self.kv_caches, beam_caches, strict=True)):
            attend = partial(self._attend, prefix, own, row)
            hidden = decoder_layer(draft, wiring, i, embeds, hidden, cos_sin, attend)
        return hidden

    def _attend(self, prefix: KVCache, own: KVCache, row: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``[S * topk, heads, D]``: each beam attends to the prefix and to its own place at earlier depths."""
        own.append(k, v)
        topk = self.setting[1]
        beams = [
            chain_attention(
                q[beam::topk],
                [prefix.keys[0], *(key[beam::topk] for key in own.keys)],
                [prefix.values[0], *(value[beam::topk] for value in own.values)],
                row, self.wiring.window,
            )
            for beam in range(topk)
        ]  # fmt: skip
        return torch.stack(beams, 1).flatten(0, 1)

    def _topk_drafts(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities and target ids of the best drafts ``[rows, topk]``, and the gap to the next one ``[rows]``."""
        logits = lm_head_logits(before_head(self.draft, self.wiring, state), head_weight(self.draft, self.wiring))
        probs, picks, gap = _topk_with_margin(torch.softmax(logits.float(), -1), self.setting[1])
        ids = target_ids(self.draft, self.wiring)
        return probs, picks if ids is None else ids[picks], gap


def _topk_with_margin(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``count`` best of each row ``[rows, M]``, and the gap in log score to the next one ``[rows]``."""
    values, indices = scores.topk(count, dim=-1)
    if scores.shape[1] == count:
        return values, indices, torch.full_like(values[:, 0], float("inf"))
    after = scores.topk(count + 1, dim=-1).values[:, -1]
    return values, indices, values[:, -1].log() - after.log()


@torch.inference_mode()
def node_probabilities(target: Target, tokens: Tensor, trees: Trees, temperature: float) -> Tensor:
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
    return torch.cat([_probabilities(model, tokens, trees, part, temperature) for part in parts])


def _probabilities(model: torch.nn.Module, tokens: Tensor, trees: Trees, part: slice, temperature: float) -> Tensor:
    starts, nodes = trees.starts[part], trees.tokens[part]  # [S], [S, N]
    parents, depths = trees.parents[part], trees.depths[part]
    count, width = nodes.shape
    known = int(starts[-1]) + 2  # tokens of the conversation that any start knows
    place = known + torch.arange(count * width).view(count, width)  # [S, N] of each node, among all rows
    above = torch.where(parents < 0, starts[:, None] + 1, place.gather(1, parents.clamp(min=0)))  # [S, N] row before
    length = known + count * width
    visible = torch.ones(length, length, dtype=torch.bool).tril_()
    visible[known:] = False
    visible[known:, :known] = (torch.arange(known) < (starts + 2)[:, None]).repeat_interleave(width, 0)
    for node in range(width):  # parents come before children
        rows = place[:, node]
        own = parents[:, node] >= 0
        visible[rows[own], known:] = visible[above[own, node], known:]
        visible[rows, rows] = True
    bias = torch.zeros(length, length, dtype=model.dtype).masked_fill_(~visible, torch.finfo(model.dtype).min)
    ids = torch.cat([tokens[:known], nodes.flatten()])
    positions = torch.cat([torch.arange(known), (starts[:, None] + 1 + depths).flatten()])
    ids, positions, bias = (x.to(model.device) for x in (ids, positions, bias))
    hidden = model.get_decoder()(
        input_ids=ids[None], attention_mask=bias[None, None], position_ids=positions[None], use_cache=False
    ).last_hidden_state[0]  # [length, H], after the final norm
    parts = []
    for rows, word_ids in zip(above.flatten().split(ROWS), nodes.flatten().split(ROWS), strict=True):
        logits = model.get_output_embeddings()(hidden[rows]).float() / temperature
        parts.append(logits.log_softmax(-1).gather(1, word_ids[:, None].to(logits.device))[:, 0].exp().cpu())
    return torch.cat(parts).view(count, width).masked_fill_(parents == -2, 0.0)
