"""The verify steps that greedy serving takes, read off one forward pass over a finished conversation.

Greedy verification accepts drafts while they equal the target's next tokens, and these are in the
conversation. So from what would be accepted at every start the whole sequence of steps follows. The same
holds above temperature 0 for SGLang's target-only rule, once the tokens are known: a draft is accepted when the
target's draw is the draft, and a rejected one is never drawn.

Semantics of SGLang 0.5.23 (``srt/speculative/eagle_worker_v2.py``, ``_resolve_spec_v2_tokens``): prefill
gives the first output token; each verify step then accepts 0 to ``num_steps`` drafts and adds a bonus token;
the counts of the last step are those before the cut by stop or length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from eagle3lib.maths.draft import Draft, forward, rows_of
from eagle3lib.maths.target import Target
from eagle3lib.maths.trees import build_tree
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.reading.samples import Sample
from eagle3lib.reading.setting import Setting

#: Tokens of the target past a request's end, so that its last verify step can be predicted too.
BEYOND = 16
#: What each start would accept where a conversation ends with these tokens, and whether that is sure: both ``[S]``.
Runs = Callable[[Tensor], tuple[Tensor, Tensor]]


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


def verify_sample(sample: Sample, starts: Tensor, runs: Runs, beyond: int = 0) -> VerifySteps:
    """The steps of all replies of a conversation; their starts count from the prompt's last token.

    ``starts [S]`` are those of ``runs``. ``beyond``: the last so many tokens are past the request's end.
    """
    first, accepted, begun, complete = int(starts[0]), [], [], True
    for begin, end in sample.replies:
        here = slice(begin - 1 - first, end - 1 - first)  # the starts that know a token of this reply
        each, sure = runs(sample.input_ids[:end])
        outputs = end - begin - (beyond if end == len(sample.input_ids) else 0)
        steps = simulate_verify(each[here], sure[here], outputs)
        accepted += steps.accepted
        begun += [start + here.start for start in steps.starts]
        complete = complete and steps.complete
    return VerifySteps(tuple(accepted), tuple(begun), complete)


def accept_counts(requests: Sequence[VerifySteps]) -> tuple[list[int], list[int]]:
    """Tokens given and verify steps of each request: the accept length's numerators and denominators."""
    return [request.tokens for request in requests], [len(request.accepted) for request in requests]


@dataclass(frozen=True)
class Prediction:
    """One request under one setting.

    ``runs``: drafts that would be accepted at each start of the last reply, ``None`` where the conversation is not
    known far enough. ``steps``: the verify steps that follow from them.
    """

    runs: tuple[int | None, ...]
    steps: VerifySteps


def predict(
    draft: Draft,
    wiring: Wiring,
    sample_states: SampleStates,
    setting: Setting,
    beyond: int = 0,
    ancestors: bool = False,
) -> Prediction:
    """What serving accepts under ``setting``: a chain where topk is 1, else SGLang's tree.

    Greedy, or SGLang's target-only sampling of these very tokens. ``beyond``: as in ``verify_sample``. ``ancestors``
    as in ``trees.build_tree``: each node attends to the keys of its own chain.
    """
    num_steps, topk, _ = setting
    sample, states = sample_states.sample, sample_states.stack(wiring.boundaries)
    first = sample.prompt_tokens - 1
    if first >= rows_of(sample.input_ids, wiring):  # a shift that leaves a short reply no start
        return Prediction((), VerifySteps((), (), complete=False))
    runs: Runs
    if topk == 1:
        chains = forward(draft, wiring, states, sample.input_ids, num_steps, first)
        starts, runs = chains.starts, partial(chains.runs, num_steps=num_steps)
    else:
        trees = build_tree(draft, wiring, states, sample.input_ids, setting, first, ancestors)
        starts, runs = trees.starts, trees.runs
    each, sure = runs(sample.input_ids)
    known = tuple(n if ok else None for n, ok in zip(each.tolist(), sure.tolist(), strict=True))
    return Prediction(known, verify_sample(sample, starts, runs, beyond))


def continued(samples: Sequence[Sample], target: Target) -> list[Sample]:
    """Each sample with ``BEYOND`` more greedy tokens of the target, which is small enough to run."""
    found = []
    after = target.greedy([sample.input_ids.tolist() for sample in samples], BEYOND, stop=False)
    for sample, tokens in zip(samples, after, strict=True):
        more = torch.tensor(tokens, dtype=sample.input_ids.dtype)
        mask = torch.cat([sample.loss_mask, torch.ones(len(more), dtype=torch.bool)])
        ids = torch.cat([sample.input_ids, more])
        found.append(replace(sample, input_ids=ids, loss_mask=mask, states=None, last_hidden_state=None))
    return found
