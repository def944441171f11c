"""The verify steps that greedy serving takes, read off one forward pass over a finished conversation.

Greedy verification accepts drafts while they equal what the target says next, and what it says next stands
in the conversation. So from the chains of all starts the whole sequence of steps follows, for every
``num_steps``.

Semantics of SGLang 0.5.23 (``srt/speculative/eagle_worker_v2.py``, ``_resolve_spec_v2_tokens``): prefill
gives the first output token; each verify step then accepts 0 to ``num_steps`` drafts and adds a bonus token;
the counts of the last step are those before the cut by stop or length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lib.errors import InputError


@dataclass(frozen=True)
class Walk:
    """The verify steps of one request: drafts accepted in each, and the start each began at.

    ``complete`` is false where the last step could not be predicted, because the conversation is not known
    far enough past the request's end; that step is then left out.
    """

    accepted: tuple[int, ...]
    starts: tuple[int, ...]
    complete: bool

    def histogram(self, num_steps: int) -> tuple[int, ...]:
        """``[j]``: verify steps with j accepted drafts."""
        return tuple(self.accepted.count(j) for j in range(num_steps + 1))

    @property
    def tokens(self) -> int:
        """Tokens that these steps gave, bonus tokens counted and the prefill's not."""
        return sum(self.accepted) + len(self.accepted)


def walk(right: Tensor, num_steps: int, known: Tensor | None = None, outputs: int | None = None) -> Walk:
    """The steps of one request for one ``num_steps``.

    Args:
        right: bool ``[depths, S]``: is the draft at this depth, from this start, the conversation's token?
            Start 0 is the first verify step: it knows the token that prefill gave. See ``Chains.right``.
        known: bool ``[depths, S]``: is there a token to compare with? All, if left out.
        outputs: output tokens of the request, the prefill's among them. By default one more than there are
            starts: the conversation ends with the request.
    """
    depths, count = right.shape
    if not 1 <= num_steps <= depths:
        raise InputError("num_steps", num_steps, f"1 to {depths}, the depths that were computed")
    outputs = count + 1 if outputs is None else outputs
    runs = right[:num_steps].long().cumprod(0).sum(0)  # [S] drafts accepted, were this start a step
    sure = torch.ones(count, dtype=torch.bool)
    if known is not None:  # the first draft that failed must have failed against a real token
        failed = runs.clamp(max=num_steps - 1)
        sure = (runs == num_steps) | known[:num_steps].gather(0, failed[None])[0]
    runs_list, sure_list = runs.tolist(), sure.tolist()
    accepted, starts, at, given = [], [], 0, 1
    while given < outputs:
        if at >= count or not sure_list[at]:
            return Walk(tuple(accepted), tuple(starts), complete=False)
        accepted.append(runs_list[at])
        starts.append(at)
        given += runs_list[at] + 1
        at += runs_list[at] + 1
    return Walk(tuple(accepted), tuple(starts), complete=True)


def walks(right: Tensor, known: Tensor | None = None, outputs: int | None = None) -> list[Walk]:
    """``walk`` for every ``num_steps`` from 1 to the depths at hand; ``[0]`` is one step."""
    return [walk(right, steps, known, outputs) for steps in range(1, len(right) + 1)]


def accept_counts(requests: Sequence[Walk]) -> tuple[list[int], list[int]]:
    """Tokens given and verify steps of each request: the accept length's numerators and denominators."""
    return [request.tokens for request in requests], [len(request.accepted) for request in requests]
