"""Our counts under each trainer's name are the counts that the trainer reports."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3lib.maths.draft import Chains, forward, target_ids
from eagle3lib.maths.draft_weights import Draft
from eagle3lib.maths.kernels import rms_norm
from eagle3lib.measuring.accuracy import coverage, depth_accuracy, depth_counts, teacher, trainer_counts
from tests.test_draft_against_trainers import (
    CLASSIC,
    DEPTHS,
    EPS,
    TOKENS,
    VOCAB,
    WIDTH,
    named,
    ours,
    random_draft,
    sample,
    speculators_model,
)  # fmt: skip


def agreeing_teacher(draft: Draft, chains: Chains, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Last states and a head of a target that mostly says what every fourth chain of the draft proposes.

    (A random draft beside a random target would never be right.)
    """
    draw = torch.Generator().manual_seed(3)
    head = torch.randn(VOCAB, WIDTH, generator=draw)
    wanted = torch.randint(VOCAB, (TOKENS,), generator=draw)
    for row in range(0, TOKENS - 1 - DEPTHS, DEPTHS):
        meant = torch.rand(DEPTHS, generator=draw) < 0.7
        there = slice(row + 1, row + 1 + DEPTHS)  # what is said after token t + d is token t + 1 + d
        wanted[there] = torch.where(meant, chains.proposed[:, row], wanted[there])
    return head[wanted] / draft.norm, head  # so that the normed state is a row of the head


def test_accuracies_as_speculators_reports_them() -> None:
    pytest.importorskip("speculators")
    from speculators.losses import resolve_loss_config

    draft, (states, tokens) = random_draft(), sample()
    ids, mask = target_ids(draft, CLASSIC), torch.arange(TOKENS) >= 9
    chains = forward(draft, CLASSIC, states, tokens, DEPTHS)
    last, head = agreeing_teacher(draft, chains, tokens)
    model = speculators_model(draft, CLASSIC)
    weights = named(draft, "layers.0.", CLASSIC)
    weights |= {"verifier_norm.weight": draft.norm, "verifier_lm_head.weight": head[ids]}
    weights |= {"embed_tokens.weight": draft.target_embedding, "t2d": torch.zeros(VOCAB, dtype=torch.bool)}
    model.load_state_dict(weights)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        _, _, metrics = model(
            hidden_states=states[:-1].flatten(1)[None], input_ids=tokens[None, 1:],
            document_ids=torch.zeros(1, TOKENS - 1, dtype=torch.long), loss_mask=mask[None, 1:],
            verifier_last_hidden_states=last[None, 1:], ttt_steps=DEPTHS,
            loss_config=resolve_loss_config("ce", "eager"),
        )  # fmt: skip
    said = teacher(rms_norm(last, draft.norm, EPS), head, ids)
    for name in ("full_acc", "cond_acc"):
        top, bottom = trainer_counts(f"speculators {name}", chains, said, mask)
        assert top.sum() > 5
        for d in range(DEPTHS):
            assert (top[d], bottom[d]) == (metrics[f"{name}_{d}_sum"], metrics[f"{name}_{d}_total"]), (name, d)


def test_accuracies_as_specforge_counts_them() -> None:
    pytest.importorskip("specforge")
    from specforge.algorithms.eagle3.model import _compute_metric_counts

    draft, (states, tokens) = random_draft(), sample()
    mask = torch.arange(TOKENS) >= 9
    chains = forward(draft, CLASSIC, states, tokens, DEPTHS)
    last, head = agreeing_teacher(draft, chains, tokens)
    said = teacher(rms_norm(last, draft.norm, EPS), head, target_ids(draft, CLASSIC))
    top, bottom = trainer_counts("specforge acc", chains, said, mask)
    logits = ours(draft, CLASSIC, states, tokens, DEPTHS)[1]
    theirs = mask.long().clone()
    theirs[-1] = 0  # as its offline reader does
    assert top.sum() > 5
    for d in range(DEPTHS):
        padded = F.pad(logits[d], (0, 0, 0, d + 1))[None]
        truth, counted = F.pad(said.full[1 + d :], (0, 1 + d), value=-1), F.pad(theirs[d:], (0, d))
        with torch.compiler.set_stance("force_eager"):
            correct, total = _compute_metric_counts(padded, truth[None], counted[None, :, None], draft.d2t)
        assert (top[d], bottom[d]) == (correct, total)


def test_our_definition_by_hand() -> None:
    """Two requests; depth 2 counts from the same starts as depth 1."""
    tokens = torch.tensor([9, 1, 2, 3, 4, 5, 6])
    mask = torch.arange(7) >= 2
    proposed = torch.tensor([[3, 4, 0, 6], [0, 5, 6, 0]])  # starts 1 .. 4; token t + 2, then t + 3
    chains = Chains(proposed, torch.arange(1, 5), torch.zeros(2, 4))
    one = depth_counts(chains, tokens, mask)
    assert (one.starts, one.alone, one.together) == (3, (2, 2), (2, 1))
    first, second = depth_accuracy([one, one])
    assert (first.conditional.numerator, first.conditional.denominator) == (4, 6)
    assert (second.conditional.numerator, second.conditional.denominator) == (2, 4)
    assert (second.accuracy.numerator, second.cumulative.numerator) == (4, 2)


def test_coverage_counts_generated_tokens() -> None:
    tokens, mask = torch.tensor([7, 1, 2, 3]), torch.tensor([0, 1, 1, 1])
    assert coverage([tokens, tokens], [mask, mask], torch.tensor([1, 3, 7])).value == 2 / 3
    assert coverage([tokens], [mask], None).value == 1
