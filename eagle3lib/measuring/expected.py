"""Acceptance above temperature 0, as an expectation over the draws: nothing is drawn.

Target-only (SGLang's default rule, ``tree_speculative_sampling_target_only``): the target draws its
next token, and a drafted child that is this token is accepted. The sampled tokens therefore fix where verify
steps begin; from there a node is reached with the product of the target's probabilities along its path.

Rejection sampling (Leviathan et al. 2023, arXiv 2211.17192; SGLang ``--speculative-use-rejection-sampling``, chains
only): a draft x from q is accepted with min(1, p(x) / q(x)). A sampled token x came from an accepted draft with
min(p(x), q(x)) of its p(x), so with min(1, q(x) / p(x)): given the tokens, acceptance is a chain of such chances.

Both average over conversations that the target sampled at this temperature. Plain temperature only: the top-k and
top-p that an engine may apply besides are left out.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3lib.maths.draft import before_head, combine, depth_states
from eagle3lib.maths.draft_weights import Draft, head_weight, target_ids
from eagle3lib.maths.kernels import lm_head_logits
from eagle3lib.maths.target import Target
from eagle3lib.maths.trees import Trees, build_tree, node_probabilities
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.prediction import verify_sample
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.reading.setting import Setting

Rule = Literal["target-only", "rejection", "greedy"]


def expected(
    draft: Draft, wiring: Wiring, sample_states: SampleStates, target: Target,
    setting: Setting, temperature: float, rule: Rule = "target-only",
) -> tuple[float, ...]:  # fmt: skip
    """``[j]``: expected verify steps of one request that accept j drafts.

    ``rule`` is not greedy. The target must be small enough to run. Under rejection sampling a reply's last
    ``num_steps`` tokens are only looked ahead to.
    """
    num_steps, sample = setting[0], sample_states.sample
    states, first = sample_states.stack(wiring.boundaries), sample.prompt_tokens - 1
    if rule == "target-only":
        trees = build_tree(draft, wiring, states, sample.input_ids, setting, first)
        at_least = target_only(trees, node_probabilities(target, sample.input_ids, trees, temperature), num_steps)
        steps = verify_sample(sample, trees.starts, trees.runs)
        return tuple(_exactly(at_least)[list(steps.starts)].sum(0).tolist())
    last = target.states(sample.input_ids)[:, -1]
    at_least = rejection(draft, wiring, states, sample.input_ids, last, target, temperature, num_steps, first)
    counts = [
        expected_histogram(at_least[begin - 1 - first : max(begin, end - num_steps) - 1 - first])
        for begin, end in sample.replies
    ]
    return tuple(map(sum, zip(*counts, strict=True)))


def target_only(trees: Trees, chances: Tensor, num_steps: int) -> Tensor:
    """``[S, num_steps + 1]``: the chance to accept at least j drafts; ``chances [S, N]`` of ``node_probabilities``."""
    reach = chances.clone()
    for node in range(reach.shape[1]):  # parents come before children
        parent = trees.parents[:, node]
        reach[:, node] *= torch.where(parent < 0, 1.0, reach.gather(1, parent.clamp(min=0)[:, None])[:, 0])
    at_least = torch.zeros(len(reach), num_steps + 1)
    at_least[:, 0] = 1
    return at_least.scatter_add_(1, trees.depths, reach)


@torch.inference_mode()
def rejection(
    draft: Draft, wiring: Wiring, states: Tensor, tokens: Tensor, last: Tensor, target: Target,
    temperature: float, num_steps: int, first: int = 0, rows: int = 256,
) -> Tensor:  # fmt: skip
    """``[S, num_steps + 1]``: the chance that at least j drafts were accepted, given the sampled tokens.

    For the starts that have all tokens ahead.

    Args:
        states, tokens, first: as in ``draft.forward``; the conversation was sampled at ``temperature``.
        last: ``[T, H_t]``, the last block's output, before the final norm.
        rows: distributions over the target's vocabulary that exist at once.
    """
    starts = torch.arange(first, max(first, len(tokens) - num_steps - 1))
    weight, ids = head_weight(draft, wiring), target_ids(draft, wiring)
    at_least = [torch.ones(len(starts))]
    hidden = combine(draft, wiring, states)
    for depth, state in enumerate(depth_states(draft, wiring, hidden, tokens, num_steps, first), 1):
        logits = lm_head_logits(before_head(draft, wiring, state[: len(starts)]), weight).float()
        ratio = []
        for part, drafted in zip(starts.split(rows), logits.split(rows), strict=True):
            p = torch.log_softmax(target.logits(last[part + depth]).float() / temperature, -1)  # [rows, V]
            q = torch.log_softmax(drafted / temperature, -1)  # [rows, V_d]
            if ids is not None:
                q = torch.full_like(p, float("-inf")).index_copy_(1, ids, q)
            sampled = tokens[part + depth + 1, None].to(p.device)
            ratio.append((q.gather(1, sampled) - p.gather(1, sampled)).exp().clamp(max=1)[:, 0].cpu())
        at_least.append(at_least[-1] * torch.cat(ratio))
    return torch.stack(at_least, 1)


def expected_histogram(at_least: Tensor) -> tuple[float, ...]:
    """``[j]``: expected verify steps with j accepted drafts, at the starts of one reply.

    ``at_least [S, num_steps + 1]``, given the sampled tokens. A step at start t that accepts j is followed by one
    at start t + j + 1; the prefill gives the first token.
    """
    exactly = _exactly(at_least).double()
    depths = exactly.shape[1]
    visits = torch.zeros(len(exactly) + depths, dtype=torch.float64)
    visits[0] = 1
    counted = torch.zeros(depths, dtype=torch.float64)
    for start in range(len(exactly)):
        steps = visits[start] * exactly[start]
        counted += steps
        visits[start + 1 : start + 1 + depths] += steps
    return tuple(counted.tolist())


def _exactly(at_least: Tensor) -> Tensor:
    return at_least - F.pad(at_least[:, 1:], (0, 1))  # [S, num_steps + 1]
