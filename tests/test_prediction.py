"""The walk of verify steps against speculative decoding played out token by token."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib.maths.draft import Chains
from eagle3lib.measuring.prediction import VerifySteps, accept_counts, simulate_verify

RIGHT = st.integers(1, 6).flatmap(
    lambda depths: st.lists(st.lists(st.booleans(), min_size=depths, max_size=depths), min_size=1, max_size=40)
)


def walk(right: torch.Tensor, num_steps: int, outputs: int | None = None, known: int | None = None) -> VerifySteps:
    """The walk over chains of which ``right [depths, S]`` says whether they are; ``known`` tokens are known."""
    depths, count = right.shape
    tokens = torch.zeros(known or count + depths + 2, dtype=torch.long)
    chains = Chains((~right).long(), torch.arange(count), torch.zeros(depths, count))
    return simulate_verify(*chains.runs(tokens, num_steps), outputs)


def played(right: list[list[bool]], num_steps: int, outputs: int) -> list[int]:
    """Speculative decoding as a loop over tokens: position i knows output token i."""
    said, steps = 1, []
    while said < outputs:
        accepted = 0
        for depth in range(num_steps):
            if not right[said - 1][depth]:
                break
            accepted += 1
        steps.append(accepted)
        said += accepted + 1
    return steps


@settings(deadline=None)
@given(RIGHT, st.data())
def test_walk_is_speculative_decoding(right: list[list[bool]], data: st.DataObject) -> None:
    depths, count = len(right[0]), len(right)
    outputs = data.draw(st.integers(1, count + 1))
    table = torch.tensor(right).T
    for num_steps in range(1, depths + 1):
        steps = walk(table, num_steps, outputs)
        assert list(steps.accepted) == played(right, num_steps, outputs)
        assert steps.complete
        assert sum(steps.histogram(num_steps)) == len(steps.accepted)
        assert list(steps.starts) == [sum(steps.accepted[:i]) + i for i in range(len(steps.accepted))]
        assert outputs <= 1 + steps.tokens <= outputs + num_steps or outputs == 1


@settings(deadline=None)
@given(RIGHT)
def test_an_unknown_end_is_left_out_and_said(right: list[list[bool]]) -> None:
    """Only tokens up to the last start's are known: a step that would look further is not guessed."""
    table = torch.tensor(right).T
    depths, count = table.shape
    for num_steps in range(1, depths + 1):
        whole = walk(table, num_steps, outputs=count + 1)
        seen = walk(table, num_steps, outputs=count + 1, known=count + 2)
        assert whole.accepted[: len(seen.accepted)] == seen.accepted
        assert len(whole.accepted) - len(seen.accepted) == (0 if seen.complete else 1)


def test_one_by_hand() -> None:
    # Starts 0 .. 5; two drafts right from start 0, none from 3, one from 4.
    right = torch.tensor([[1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]], dtype=torch.bool)
    steps = walk(right, 2)
    assert (steps.accepted, steps.starts, steps.complete) == ((2, 0, 1), (0, 3, 4), True)
    assert steps.histogram(2) == (1, 1, 1)
    assert accept_counts([steps]) == ([6], [3])
