"""Expected acceptance against enumeration, a game of coins, and the greedy walk that it becomes at temperature 0."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle3lib.findings.config_rules import inspect
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.draft_weights import target_ids
from eagle3lib.maths.target import Target
from eagle3lib.maths.trees import Trees, build_tree, node_probabilities
from eagle3lib.measuring.expected import expected, expected_histogram, rejection, target_only
from eagle3lib.measuring.prediction import verify_sample
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.reading.samples import Sample
from tests.test_trees import FIRST, VOCAB, WIDTH, WIRINGS, chances, made
from tests.tiny import tiny_draft, tiny_target


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Tensor]:
    """A target, a draft and a greedy conversation."""
    root = tmp_path_factory.mktemp("pair")
    tiny_draft(root / "draft", tiny_target(root / "target", vocab=64), draft_vocab=48)
    prompt = list(range(5, 15))
    (said,) = Target.open(root / "target").greedy([prompt], 40, stop=False)
    return root / "target", root / "draft", torch.tensor(prompt + said)


def grown(pair: tuple[Path, Path, Tensor], setting: tuple[int, int, int], tokens: Tensor) -> Trees:
    target, draft, _ = pair
    wiring = inspect(str(draft), str(target), "").runnable_wiring
    states = Target.open(target).states(tokens, wiring.boundaries)
    return build_tree(Target.open(target).load_draft(draft), wiring, states, tokens, setting, 9)


def test_node_probabilities_are_what_the_target_says_along_each_path(pair: tuple[Path, Path, Tensor]) -> None:
    target, _, tokens = pair
    trees, tensors = grown(pair, (3, 3, 9), tokens), Target.open(target)
    found = node_probabilities(tensors, tokens, trees, 0.7)
    for row in range(0, len(trees.starts), 13):
        start = int(trees.starts[row])
        for node, word in enumerate(trees.tokens[row].tolist()):
            path, at = [], int(trees.parents[row, node])
            while at >= 0:
                path.insert(0, int(trees.tokens[row, at]))
                at = int(trees.parents[row, at])
            said = torch.cat([tokens[: start + 2], torch.tensor(path, dtype=torch.long)])
            last = tensors.states(said)[-1:, -1]
            expected = torch.softmax(tensors.logits(last)[0] / 0.7, -1)[word]
            assert found[row, node] == pytest.approx(float(expected), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("setting", [(4, 1, 5), (3, 3, 9)], ids=str)
def test_at_temperature_zero_it_is_the_greedy_walk(pair: tuple[Path, Path, Tensor], setting: tuple[int, ...]) -> None:
    target, _, tokens = pair
    trees = grown(pair, setting, tokens)
    walk = verify_sample(conversation(tokens), trees.starts, trees.runs)
    assert counted(pair, setting, tokens, 1e-5) == pytest.approx(walk.histogram(setting[0]), abs=1e-3)
    assert len(walk.accepted) > 8


@pytest.mark.parametrize("setting", [(3, 1, 4), (3, 3, 9)], ids=str)
def test_over_sampled_conversations_it_is_what_their_walks_accept(
    pair: tuple[Path, Path, Tensor], setting: tuple[int, ...]
) -> None:
    """The target-only rule: once the tokens are drawn the steps are given, so many conversations give the truth."""
    target, _, tokens = pair
    torch.manual_seed(0)
    drawn = Target.open(target).model().generate(
        tokens[None, :10].repeat(60, 1), do_sample=True, temperature=0.9, top_k=0, min_new_tokens=40,
        max_new_tokens=40, pad_token_id=0,
    )  # fmt: skip
    differences, accepted, steps = [], 0.0, 0
    for said in drawn:
        trees = grown(pair, setting, said)
        walk = verify_sample(conversation(said), trees.starts, trees.runs)
        predicted = counted(pair, setting, said, 0.9)
        assert sum(predicted) == pytest.approx(len(walk.accepted), rel=1e-4)
        differences.append(sum(j * count for j, count in enumerate(predicted)) - sum(walk.accepted))
        accepted, steps = accepted + sum(walk.accepted), steps + len(walk.accepted)
    spread = torch.tensor(differences)
    assert abs(float(spread.mean())) < 3 * float(spread.std()) / len(spread) ** 0.5
    assert 0.1 < accepted / steps < 2 and float(spread.std()) > 0.1


def conversation(tokens: Tensor) -> Sample:
    return Sample("drawn", tokens, torch.arange(len(tokens)) >= 10, 10)


def counted(pair: tuple[Path, Path, Tensor], setting: tuple[int, ...], tokens: Tensor, temperature: float) -> list:
    target, draft, _ = pair
    tensors, wiring = Target.open(target), inspect(str(draft), str(target), "").runnable_wiring
    states = tensors.states(tokens, wiring.boundaries)
    sample_states = SampleStates.of(conversation(tokens), states, wiring.boundaries, tensors.embedding)
    loaded = Draft.load(draft, tensors.embedding)
    return list(expected(loaded, wiring, sample_states, tensors, setting, temperature))


def test_target_only_is_the_engines_game_of_coins() -> None:
    """Each level draws one coin and gives it to the children in turn, by the target's probabilities."""
    draw = torch.Generator().manual_seed(0)
    parents = torch.tensor([[-1, -1, 0, 0, 1, 2]])
    depths = torch.tensor([[1, 1, 2, 2, 2, 3]])
    chance = torch.tensor([[0.5, 0.3, 0.2, 0.6, 0.9, 0.7]])
    trees = Trees(torch.zeros(1, dtype=torch.long), parents, parents, depths, torch.zeros(1))
    games, counts = 40_000, torch.zeros(4)
    for coins in torch.rand(games, 3, generator=draw).tolist():
        at, accepted = -1, 0
        for coin in coins:
            passed = 0.0
            for child in (parents[0] == at).nonzero().flatten().tolist():
                passed += float(chance[0, child])
                if coin <= passed:
                    at, accepted = child, accepted + 1
                    break
            else:
                break
        counts[: accepted + 1] += 1
    assert torch.allclose(target_only(trees, chance, 3)[0], counts / games, atol=4 * 0.5 / games**0.5)


def test_rejection_sampling_is_unbiased() -> None:
    """Over all conversations, each as likely as the target says it, the estimate is the exact chance."""
    draft, states, tokens = made()
    wiring, steps, temperature = WIRINGS["plain"], 2, 3.0
    draw = torch.Generator().manual_seed(1)
    head = torch.randn(VOCAB, WIDTH, generator=draw) * 0.4
    target, last = Target(head, head, torch.ones(WIDTH), 1e-6), torch.randn(len(tokens), WIDTH, generator=draw)
    p = torch.softmax(target.logits(last) / temperature, -1)
    ids = target_ids(draft, wiring)

    def chance(path: tuple[int, ...], more: int) -> float:
        """To accept ``more`` drafts after ``path``."""
        if not more:
            return 1.0
        logits = chances(draft, wiring, states, tokens, path, FIRST).log()
        q = torch.zeros(VOCAB).index_add_(0, ids, torch.softmax(logits / temperature, -1))
        both = torch.minimum(p[FIRST + 1 + len(path)], q)
        return sum(float(both[word]) * chance((*path, word), more - 1) for word in both.nonzero().flatten().tolist())

    estimate = torch.zeros(steps + 1)
    for words in product(range(VOCAB), repeat=steps):
        said = tokens[: FIRST + steps + 2].clone()
        said[FIRST + 2 : FIRST + 2 + steps] = torch.tensor(words)
        likely = torch.stack([p[FIRST + 1 + i, word] for i, word in enumerate(words)]).prod()
        rows = states[: len(said)]
        estimate += likely * rejection(draft, wiring, rows, said, last, target, temperature, steps, FIRST)[0]
    exact = torch.tensor([chance((), n) for n in range(steps + 1)])
    assert torch.allclose(estimate, exact, atol=1e-5) and 0.02 < exact[2] < exact[1] < 0.9


def test_given_the_words_steps_are_a_renewal() -> None:
    """Rejection: at each token a chance, whatever the start; played out many times."""
    draw = torch.Generator().manual_seed(2)
    chance = torch.rand(2, 9, generator=draw)  # [depth, start]
    at_least = torch.stack([torch.ones(9), chance[0], chance[0] * chance[1]], 1)
    games, counts = 20_000, torch.zeros(3)
    for coins in torch.rand(games, 9, 2, generator=draw):
        at = 0
        while at < 9:
            accepted = int((coins[at] < chance[:, at]).long().cumprod(0).sum())
            counts[accepted] += 1
            at += accepted + 1
    assert torch.allclose(torch.tensor(expected_histogram(at_least)).float(), counts / games, atol=0.05)
    assert min(expected_histogram(at_least)) > 0
