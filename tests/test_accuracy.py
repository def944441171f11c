"""Our counts under each trainer's name are the counts that the trainer reports."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Chains, forward
from eagle3lib.maths.draft_weights import Draft, target_ids
from eagle3lib.maths.kernels import rms_norm
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.accuracy import (
    TargetArgmax,
    coverage,
    depth_accuracy,
    depth_counts,
    target_argmax,
    trainer_counts,
)
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

DEMO = Path(__file__).resolve().parents[1] / "data" / "demo"


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
    said = target_argmax(rms_norm(last, draft.norm, EPS), head, ids)
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
    said = target_argmax(rms_norm(last, draft.norm, EPS), head, target_ids(draft, CLASSIC))
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


def demo(name: str) -> tuple[Any, ...]:
    """The demo draft in a trainer's own class and in ours, on made-up states, and a target that often agrees."""
    pytest.importorskip(name)
    spec = importlib.util.spec_from_file_location("recipe", DEMO / "recipe" / "evaluate.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    draw = torch.Generator().manual_seed(0)
    weights = load_file(DEMO / "draft" / "model.safetensors")
    weights = {key: w.float() if w.is_floating_point() else w for key, w in weights.items()}
    embedding, norm = torch.randn(49152, 576, generator=draw), 1 + 0.3 * torch.randn(576, generator=draw)
    draft, wiring = Draft.load(DEMO / "draft", embedding), Wiring((0, 3, 16), rope_theta=1e5)
    ids = target_ids(draft, wiring)
    tokens = ids[torch.randint(len(ids), (TOKENS,), generator=draw)]
    states = torch.randn(TOKENS, 3, 576, generator=draw) * torch.tensor([0.1, 3.0, 7.0])[:, None]
    chains = forward(draft, wiring, states, tokens, DEPTHS)
    wanted = tokens.roll(-1)
    for row in range(0, TOKENS - 1 - DEPTHS, DEPTHS):
        there = slice(row + 1, row + 1 + DEPTHS)
        wanted[there] = torch.where(torch.rand(DEPTHS, generator=draw) < 0.7, chains.proposed[:, row], wanted[there])
    last, mask = embedding[wanted] / norm, torch.arange(TOKENS) >= 9
    if name == "specforge":
        model = recipe.specforge_class(DEMO / "draft", weights, embedding)
    else:
        model = recipe.speculators_class(DEMO / "draft", weights, embedding, norm)
    said = target_argmax(rms_norm(last, norm, draft.eps), embedding, ids)
    return (
        recipe,
        model,
        states,
        tokens,
        mask,
        last,
        said,
        lambda first: forward(draft, wiring, states, tokens, DEPTHS, first),
    )


def test_the_demo_draft_as_speculators_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, model, states, tokens, mask, last, said, run = demo("speculators")
    counts: Counter[tuple[str, int]] = Counter()
    monkeypatch.setattr(recipe, "DEPTHS", DEPTHS)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        recipe.speculators_counts(model, states.flatten(1), last, tokens, 9, counts)
    for name in ("speculators full_acc", "speculators cond_acc"):
        for first in (0, 9 - DEPTHS):  # rows that no mask counts need not be there
            top, bottom = trainer_counts(name, run(first), said, mask)
            assert top.sum() > 5
            for d in range(DEPTHS):
                assert top[d] / bottom[d] == pytest.approx(counts[name, d + 1] / counts[f"{name} of", d + 1], abs=1e-6)


def test_the_demo_draft_as_specforge_counts_it() -> None:
    _, model, states, tokens, mask, _, said, run = demo("specforge")
    from specforge.algorithms.eagle3.model import _compute_metric_counts
    from specforge.modeling.draft.llama3_eagle import prepare_decoder_attention_mask

    top, bottom = trainer_counts("specforge acc", run(9 - DEPTHS), said, mask)
    rows, cache, fed = len(tokens) - 1, [[], []], tokens[1:]
    shown = mask.long()
    shown[-1] = 0  # as its offline reader does
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        hidden = model.project_hidden_states(states.flatten(1)[None, :-1])
        seen = prepare_decoder_attention_mask(torch.ones(1, rows, dtype=torch.bool), (1, rows), hidden, 0)
        for d in range(DEPTHS):
            hidden = model.backbone(
                input_embeds=model.embed_input_ids(fed[None]), hidden_states=hidden, cache_hidden=cache,
                attention_mask=seen, position_ids=torch.arange(rows)[None],
            )  # fmt: skip
            truth, counted = F.pad(said.full[1 + d :], (0, d), value=-1), F.pad(shown[d:-1], (0, d))
            logits = model.compute_logits(hidden)
            correct, total = _compute_metric_counts(logits, truth[None], counted[None, :, None], model.d2t)
            assert top[d] > 0 and top[d] / bottom[d] == pytest.approx(float(correct / total), abs=1e-6)
            fed = F.pad(fed[1:], (0, 1))


def test_starts_that_the_mask_counts_must_be_there() -> None:
    draft, (states, tokens) = random_draft(), sample()
    chains = forward(draft, CLASSIC, states, tokens, DEPTHS, first=8)
    said = TargetArgmax(tokens, tokens)
    with pytest.raises(InputError, match="starts from 8"):
        trainer_counts("specforge acc", chains, said, torch.arange(TOKENS) >= 9)


def test_our_definition_by_hand() -> None:
    """Two requests; depth 2 counts from the same starts as depth 1."""
    tokens = torch.tensor([9, 1, 2, 3, 4, 5, 6])
    mask = torch.arange(7) >= 2
    proposed = torch.tensor([[3, 4, 0, 6], [0, 5, 6, 0]])  # starts 1 .. 4; token t + 2, then t + 3
    chains = Chains(proposed, torch.arange(1, 5), torch.zeros(2, 4))
    one = depth_counts(chains, tokens, mask)
    assert (one.starts, one.teacher_forced, one.prefix_correct) == (3, (2, 2), (2, 1))
    first, second = depth_accuracy([one, one])
    assert (first.conditional.numerator, first.conditional.denominator) == (4, 6)
    assert (second.conditional.numerator, second.conditional.denominator) == (2, 4)
    assert (second.accuracy.numerator, second.cumulative.numerator) == (4, 2)


def test_coverage_counts_generated_tokens() -> None:
    tokens, mask = torch.tensor([7, 1, 2, 3]), torch.tensor([0, 1, 1, 1])
    assert coverage([tokens, tokens], [mask, mask], torch.tensor([1, 3, 7])).value == 2 / 3
    assert coverage([tokens], [mask], None).value == 1
