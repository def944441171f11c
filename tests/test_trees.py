"""Trees against a search played out path by path, and against chains."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths import trees
from eagle3lib.maths.draft import before_head, combine, depth_states, forward
from eagle3lib.maths.draft_weights import Draft, Layer, Linear, head_weight, target_ids
from eagle3lib.maths.trees import Trees, build_tree
from eagle3lib.maths.wiring import Wiring

WIDTH, VOCAB, TOKENS, FIRST = 24, 12, 120, 9
WIRINGS = {
    "plain": Wiring(boundaries=(0, 1, 2)),
    "norms": Wiring(boundaries=(0, 1, 2), norm_before_residual=True, norm_output=True),
    "window": Wiring(boundaries=(0, 1, 2), window=5),
}


def made(layers: int = 1, seed: int = 0) -> tuple[Draft, Tensor, Tensor]:
    """A random draft over few tokens, so that it is often right; states and tokens."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    def linear(rows: int, columns: int) -> Linear:
        return Linear(normal(rows, columns) * 2 / columns**0.5)

    def layer(wide: int) -> Layer:
        return Layer(
            q_proj=linear(WIDTH, wide), k_proj=linear(WIDTH // 2, wide), v_proj=linear(WIDTH // 2, wide),
            o_proj=linear(WIDTH, WIDTH), gate_proj=linear(WIDTH, WIDTH).weight,
            up_proj=linear(WIDTH, WIDTH).weight, down_proj=linear(WIDTH, WIDTH).weight,
            post_attention_layernorm=torch.ones(WIDTH), input_layernorm=torch.ones(WIDTH),
            hidden_norm=torch.ones(WIDTH),
        )  # fmt: skip

    kept = torch.arange(0, VOCAB, 2)
    draft = Draft(
        fc=linear(WIDTH, 3 * WIDTH), input_norm=None, fc_norms=(),
        layers=tuple(layer(2 * WIDTH if i == 0 else WIDTH) for i in range(layers)), norm=torch.ones(WIDTH),
        lm_head=normal(len(kept), WIDTH) * 0.4, own_embedding=None, target_embedding=normal(VOCAB, WIDTH),
        d2t=kept - torch.arange(len(kept)), num_aux_hidden_states=3, head_dim=6, eps=1e-6, max_positions=512,
    )  # fmt: skip
    return draft, normal(TOKENS, 3, WIDTH), torch.randint(VOCAB // 2, (TOKENS,), generator=draw) * 2


@pytest.mark.parametrize("wiring", WIRINGS.values(), ids=WIRINGS)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_tree_of_one_branch_is_a_chain(wiring: Wiring, layers: int) -> None:
    draft, states, tokens = made(layers)
    chains = forward(draft, wiring, states, tokens, 4, FIRST)
    runs, sure = build_tree(draft, wiring, states, tokens, (4, 1, 5), FIRST).runs(tokens)
    expected = chains.runs(tokens, 4)
    assert torch.equal(runs, expected[0]) and torch.equal(sure, expected[1])
    assert runs.sum() > 8


def chances(draft: Draft, wiring: Wiring, states: Tensor, tokens: Tensor, path: tuple[int, ...], start: int) -> Tensor:
    """The draft's distribution after ``path``, as the chain pass gives it where the path is what was said."""
    said = torch.cat([tokens[: start + 2], torch.tensor(path, dtype=tokens.dtype)])
    room = torch.zeros(len(said) - start - 1, *states.shape[1:])
    hidden = combine(draft, wiring, torch.cat([states[: start + 1], room]))
    *_, state = depth_states(draft, wiring, hidden, said, len(path) + 1, first=start)
    return torch.softmax(before_head(draft, wiring, state[:1]) @ head_weight(draft, wiring).T, -1)[0]


def searched(setting: tuple[int, int, int], start: int, *made: object) -> set[tuple[int, ...]]:
    """The nodes, each by its path, of EAGLE-2's tree from one start."""
    num_steps, topk, num_draft_tokens = setting
    draft, wiring, *_ = made
    ids = target_ids(draft, wiring)
    beams: dict[tuple[int, ...], float] = {(): 1.0}
    nodes: dict[tuple[int, ...], float] = {}
    for _ in range(num_steps):
        grown = {}
        for path, score in beams.items():
            best = chances(*made, path, start).topk(topk)
            for value, pick in zip(best.values.tolist(), ids[best.indices].tolist(), strict=True):
                grown[*path, pick] = score * value
        nodes |= grown
        beams = dict(sorted(grown.items(), key=lambda item: -item[1])[:topk])
    return set(sorted(nodes, key=lambda path: -nodes[path])[: num_draft_tokens - 1])


def paths(found: Trees, row: int) -> set[tuple[int, ...]]:
    known: dict[int, tuple[int, ...]] = {-1: ()}
    for node, (token, parent) in enumerate(zip(found.tokens[row].tolist(), found.parents[row].tolist(), strict=True)):
        known[node] = (*known[parent], token)
    assert [len(path) for path in list(known.values())[1:]] == found.depths[row].tolist()
    return set(known.values()) - {()}


@pytest.mark.parametrize("wiring", WIRINGS.values(), ids=WIRINGS)
@pytest.mark.parametrize("setting", [(3, 2, 6), (4, 3, 12), (2, 4, 9)], ids=str)
def test_trees_with_ancestor_keys_are_a_search_over_paths(wiring: Wiring, setting: tuple[int, int, int]) -> None:
    draft, states, tokens = made()
    found = build_tree(draft, wiring, states, tokens, setting, FIRST, ancestors=True)
    for row in range(0, len(found.starts), 16):
        assert paths(found, row) == searched(setting, FIRST + row, draft, wiring, states, tokens)


def test_keys_of_other_beams_change_trees_from_depth_three_on() -> None:
    """Held against the real engine in ``engine/test_demo.py``."""
    draft, states, tokens = made()
    for setting, same in (((2, 4, 9), True), ((4, 3, 12), False)):
        wiring = WIRINGS["plain"]
        engine, textbook = (build_tree(draft, wiring, states, tokens, setting, FIRST, own) for own in (False, True))
        assert torch.equal(engine.tokens, textbook.tokens) is same


def test_runs_follow_the_words_down_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, states, tokens = made()
    found = build_tree(draft, WIRINGS["plain"], states, tokens, (4, 3, 12), FIRST)
    runs, sure = found.runs(tokens)
    for row, start in enumerate(found.starts.tolist()):
        words, known = tuple(tokens[start + 2 :].tolist()), paths(found, row)
        expected = max(n for n in range(5) if n == 0 or words[:n] in known and n <= len(words))
        assert (runs[row], sure[row]) == (expected, expected == 4 or expected < len(words))
    assert max(b - a for a, b in pairwise([0, *runs.tolist()])) > 1
    monkeypatch.setattr(trees, "ROWS", 7)  # two starts at a time
    parts = build_tree(draft, WIRINGS["plain"], states, tokens, (4, 3, 12), FIRST)
    assert torch.equal(parts.tokens, found.tokens) and torch.equal(parts.parents, found.parents)


@pytest.mark.parametrize("setting", [(1, 4, 6), (0, 1, 2), (3, 2, 1)], ids=str)
def test_an_impossible_tree_is_refused(setting: tuple[int, int, int]) -> None:
    draft, states, tokens = made()
    with pytest.raises(InputError, match="draft tokens for these steps and topk"):
        build_tree(draft, WIRINGS["plain"], states, tokens, setting)


def test_a_map_beyond_the_vocabulary_is_refused() -> None:
    draft, states, tokens = made()
    absolute = replace(draft, d2t=torch.arange(0, VOCAB, 2))  # read as offsets
    with pytest.raises(InputError, match="target ids from 0 to 15"):
        build_tree(absolute, WIRINGS["plain"], states, tokens, (3, 2, 6))
