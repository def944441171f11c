"""A vocabulary map made again, or a head whose rows were reordered, is learned from the samples; others are left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eagle3lib.findings.wiring_rules import map_findings
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target import Target
from eagle3lib.measuring.accuracy import evaluate_all
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.measuring.vocab_map import learn_map
from tests.test_wiring_search import CONFIGURED, TRAINED, held_out, planted  # noqa: F401

OWN_ORDER = torch.arange(160)


def reordered(draft: Draft, share: float, seed: int = 0) -> Draft:
    """This share of the draft's rows moved to places that the map does not know of."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.arange(len(draft.lm_head))
    moved = torch.randperm(len(rows), generator=draw)[: int(share * len(rows))]
    rows[moved] = moved.roll(1)
    return replace(draft, lm_head=draft.lm_head[rows])


@pytest.mark.parametrize(("share", "shown"), [(0.0, False), (0.2, True), (1.0, True)])
def test_rows_of_the_head_in_another_order_are_learned(share: float, shown: bool) -> None:
    draft, dataset = planted(CONFIGURED, noise=1.0, count=16)
    broken = reordered(draft, share)
    learned = learn_map(evaluate_all(broken, CONFIGURED, dataset, 2))
    assert learned.shown == shown
    assert [(f.kind, f.severity) for f in map_findings(learned)] == ([("vocab.map", "error")] if shown else [])
    if shown:
        healthy = learn_map(evaluate_all(draft, CONFIGURED, dataset, 2)).as_given.value
        # Each half has a row less than four times, and one of three goes unlearned.
        assert learned.learned.value - learned.as_given.value > 0.3 * share * healthy
        cured, wiring = learned.applied(broken, CONFIGURED)
        assert learn_map(evaluate_all(cured, wiring, dataset, 2)).as_given.value > (1 - 0.3 * share) * healthy


@pytest.mark.parametrize("noise", [1.0, 2.2, 6.0])
def test_a_poor_draft_is_no_reordered_one(noise: float) -> None:
    for seed in range(4):
        draft, dataset = planted(CONFIGURED, noise=noise, seed=seed, count=16)
        assert not learn_map(evaluate_all(draft, CONFIGURED, dataset, 2)).shown


@pytest.mark.engine  # starts none, but takes as long
def test_the_real_draft(pair: tuple[Draft, Target], held_out: list[SampleStates]) -> None:  # noqa: F811
    draft, _ = pair
    healthy = learn_map(evaluate_all(draft, TRAINED, held_out, 2))
    assert not healthy.shown
    offsets = draft.d2t.clone()
    ids = (offsets + torch.arange(len(offsets)))[
        torch.randperm(len(offsets), generator=torch.Generator().manual_seed(0))
    ]
    broken = replace(draft, d2t=ids - torch.arange(len(ids)))  # valid in itself
    learned = learn_map(evaluate_all(broken, TRAINED, held_out, 2))
    assert learned.shown and learned.as_given.value < 0.05
    cured, wiring = learned.applied(broken, TRAINED)
    after = learn_map(evaluate_all(cured, wiring, held_out, 2)).as_given
    assert after.value > 0.5 * healthy.as_given.value  # eight conversations show the common half of the rows
