"""The verify steps that greedy serving takes, read off one forward pass over a finished conversation.

Greedy verification accepts drafts while they equal what the target says next, and what it says next stands
in the conversation. So from what would be accepted at every start the whole sequence of steps follows. The same
holds above temperature 0 for SGLang's target-only rule, once the tokens are known: a draft is accepted when the
target's draw is the draft, and a rejected one is never drawn.

Semantics of SGLang 0.5.23 (``srt/speculative/eagle_worker_v2.py``, ``_resolve_spec_v2_tokens``): prefill
gives the first output token; each verify step then accepts 0 to ``num_steps`` drafts and adds a bonus token;
the counts of the last step are those before the cut by stop or length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class VerifySteps:
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


def simulate_verify(runs: Tensor, sure: Tensor, outputs: int | None = None) -> VerifySteps:
    """The steps of one request, from what each start would accept.

    Args:
        runs: int64 ``[S]``, drafts accepted, were this start a step. Start 0 is the first verify step: it knows
            the token that prefill gave.
        sure: bool ``[S]``: is the run known to end there?
        outputs: output tokens of the request, the prefill's among them. By default one more than there are
            starts: the conversation ends with the request.
    """
    outputs = len(runs) + 1 if outputs is None else outputs
    runs_list, sure_list = runs.tolist(), sure.tolist()
    accepted, starts, at, given = [], [], 0, 1
    while given < outputs:
        if at >= len(runs_list) or not sure_list[at]:
            return VerifySteps(tuple(accepted), tuple(starts), complete=False)
        accepted.append(runs_list[at])
        starts.append(at)
        given += runs_list[at] + 1
        at += runs_list[at] + 1
    return VerifySteps(tuple(accepted), tuple(starts), complete=True)


def accept_counts(requests: Sequence[VerifySteps]) -> tuple[list[int], list[int]]:
    """Tokens given and verify steps of each request: the accept length's numerators and denominators."""
    return [request.tokens for request in requests], [len(request.accepted) for request in requests]
