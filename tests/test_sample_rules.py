"""Notebook 02 on samples: what the last state is, and whether traffic or a kind of request is another text."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagle3lib.findings.wiring_rules import (
    conclusion,
    kind_findings,
    teacher_findings,
    traffic_findings,
    worse_on_traffic,
)
from eagle3lib.maths.kernels import rms_norm
from eagle3lib.maths.target import Target
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.accuracy import DepthCounts, Evaluation, Request
from eagle3lib.measuring.prediction import VerifySteps
from eagle3lib.measuring.rates import rate
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.measuring.survey import LastState, Survey, survey, target_argmax_of
from eagle3lib.reading.samples import Sample

VOCAB, WIDTH, TOKENS, PROMPT = 300, 32, 120, 20
GOOD, POOR = rate([60, 62, 58], [80, 80, 80]), rate([4, 2, 3], [80, 80, 80])


def target(seed: int = 0) -> Target:
    draw = torch.Generator().manual_seed(seed)
    head = torch.randn(VOCAB, WIDTH, generator=draw)
    norm = torch.rand(WIDTH, generator=draw).mul(9).exp() / 99  # uneven, for a small vocabulary tells little apart
    return Target(torch.randn(VOCAB, WIDTH, generator=draw), head, norm, 1e-6)


def spoken(tensors: Target, normed: bool, claimed: bool | None, greedy: float, seed: int = 0) -> Sample:
    """A sample whose last state says the next token in a share ``greedy`` of all places."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (TOKENS,), generator=draw)
    said = torch.where(torch.rand(TOKENS, generator=draw) < greedy, tokens.roll(-1), tokens)
    before = tensors.lm_head[said] / tensors.norm
    last = rms_norm(before, tensors.norm, tensors.eps) if normed else before
    return Sample("s", tokens, torch.arange(TOKENS) >= PROMPT, PROMPT, last_hidden_state=last, last_is_normed=claimed)


def looked(*samples: Sample) -> LastState:
    found = LastState()
    for sample in samples:
        found.add(sample, target())
    return found


@pytest.mark.parametrize("greedy", [1.0, 0.4])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("claimed", [True, False, None])
def test_the_last_state_is_told_by_what_it_says(normed: bool, claimed: bool | None, greedy: float) -> None:
    found = looked(*(spoken(target(), normed, claimed, greedy, seed) for seed in range(3)))
    assert (found.normed, found.claimed, found.foreign) == (normed, claimed, False)
    findings = list(teacher_findings(found, POOR))
    if claimed in (None, normed):
        assert findings == []
    else:
        assert [(f.kind, f.severity) for f in findings] == [("target.mismatch", "error")]
        assert next(teacher_findings(found, GOOD)).severity == "warning"


def test_a_state_that_says_nothing_of_the_text_is_foreign() -> None:
    found = looked(*(spoken(target(seed=5), True, True, 1.0, seed) for seed in range(3)))
    assert found.foreign and found.normed is None
    assert [f.kind for f in teacher_findings(found, GOOD)] == ["target.mismatch"]
    assert not list(teacher_findings(LastState(), POOR))


@pytest.mark.parametrize("behind", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("normed", [True, False])
def test_rows_late_or_early_are_seen(behind: int, normed: bool) -> None:
    """Row t of the file holds the state of row t + behind."""
    samples = [spoken(target(), normed, None, 0.8, seed) for seed in range(3)]  # else the token itself, one behind
    found = looked(*(replace(s, last_hidden_state=s.last_hidden_state.roll(-behind, 0)) for s in samples))
    assert found.shift == behind
    findings = [(f.kind, f.severity) for f in teacher_findings(found, POOR)]
    assert findings == ([("align.shift", "error")] if behind else [])


def test_an_even_norm_decides_nothing() -> None:
    even = replace(target(), norm=torch.ones(WIDTH))
    found = LastState()
    found.add(spoken(even, True, False, 1.0), even)
    assert found.normed is None and not list(teacher_findings(found, POOR))


@pytest.mark.parametrize("normed", [True, False])
def test_the_teacher_is_the_same_from_either_state(normed: bool) -> None:
    tensors = target()
    sample = spoken(tensors, normed, None, 1.0)
    words = torch.arange(0, VOCAB, 2)
    said = target_argmax_of(9, tensors, words, looked(sample))(SampleStates(sample, {}))
    assert torch.equal(said.full[PROMPT:-1], sample.input_ids[PROMPT + 1 :]) and (said.full[:PROMPT] == -1).all()
    known = torch.isin(sample.input_ids[PROMPT + 1 :], words)
    assert torch.equal(said.in_draft[PROMPT:-1][known], sample.input_ids[PROMPT + 1 :][known])
    assert target_argmax_of(9, tensors, None, LastState())(SampleStates(sample, {})) is None
    boundary = target_argmax_of(9, tensors, None, LastState())(
        SampleStates(sample, {9: tensors.lm_head[sample.input_ids] / tensors.norm})
    )
    assert torch.equal(boundary.full[PROMPT:], sample.input_ids[PROMPT:])


def test_a_survey_counts_what_it_sees() -> None:
    def sample_states(seed: int, named: bool, held: tuple[int, ...]) -> SampleStates:
        sample = spoken(target(), True, True, 1.0, seed)
        states: dict[int, Tensor] = {k: torch.full((TOKENS, 4), float(k)) for k in held}
        stored = torch.stack([states[k] for k in held], 1)
        return SampleStates(
            replace(sample, states=stored, boundaries=held if named else None, layout=f"{named}"), states
        )

    found = survey(
        iter([sample_states(0, True, (2, 5)), sample_states(1, False, (2, 5, 7))]), (2, 5), torch.arange(150), target()
    )
    assert (found.boundaries, found.named, found.layouts) == ((2, 5), False, ("False", "True"))
    assert (found.lengths, found.prompts, found.longest) == ((TOKENS,) * 2, (PROMPT,) * 2, TOKENS)
    assert found.norms == {2: (2.0, 2.0), 5: (5.0, 5.0)}
    assert found.coverage.denominator == 2 * (TOKENS - PROMPT) and found.last.normed is True


def conversations(
    count: int, chance: float, steps: int = 60, category: str | None = None, seed: int = 0, late: float | None = None
) -> tuple[Evaluation, Survey]:
    """Made-up requests: each draft is right with ``chance``, with ``late`` beyond 120 tokens."""
    draw = random.Random(seed)
    requests, lengths = [], []
    for number in range(count):
        own = chance + draw.gauss(0, 0.05)  # requests differ
        accepted, starts, at = [], [], 0
        for _ in range(steps):
            here = own if late is None or PROMPT + at < 120 else late
            run = next((n for n in range(3) if draw.random() >= here), 3)
            accepted.append(run)
            starts.append(at)
            at += run + 1
        first = sum(n > 0 for n in accepted)
        counts = DepthCounts(steps, (first,) * 3, (first, sum(n > 1 for n in accepted), sum(n > 2 for n in accepted)))
        taken = (VerifySteps(tuple(accepted), tuple(starts), True),) * 3
        requests.append(Request(f"{seed}:{number}", category, counts, taken, PROMPT))
        lengths.append(PROMPT + at + 1)
    told = rate([95] * count, [100] * count)
    found = Survey((PROMPT,) * count, tuple(lengths), told, (0, 3, 16), True, (), {}, LastState())
    return Evaluation(tuple(requests)), found


def test_traffic_of_another_kind_is_named() -> None:
    samples, traffic = conversations(30, 0.6), conversations(30, 0.4, seed=1)
    found = list(traffic_findings(*samples, *traffic, 3))
    assert [(f.kind, f.severity, f.subject) for f in found] == [("quality.domain", "warning", "traffic")]
    assert worse_on_traffic(found)
    assert conclusion(None, found, Wiring((0, 3, 16)), True) == ("undecided", None)


def test_traffic_that_is_lost_where_it_is_long_is_named() -> None:
    samples = conversations(30, 0.6, steps=40)
    longer = conversations(30, 0.6, steps=120, seed=1, late=0.2)
    short = (samples[0], replace(samples[1], lengths=(120,) * 30))
    assert [f.kind for f in traffic_findings(*short, *longer, 3)] == ["context.length"]
    far = tuple(replace(r, prompt_tokens=5000) for r in conversations(30, 0.3, seed=2)[0].requests)
    (found,) = traffic_findings(*short, Evaluation(far), longer[1], 3)
    assert found.kind == "context.length" and "all of it" in found.evidence


@pytest.mark.parametrize("seed", range(6))
def test_like_traffic_and_like_kinds_are_silent(seed: int) -> None:
    samples, traffic = conversations(12, 0.6, seed=seed), conversations(12, 0.6, seed=seed + 50)
    assert not list(traffic_findings(*samples, *traffic, 3))
    kinds = [conversations(3, 0.55, category=f"k{i}", seed=seed + i)[0].requests for i in range(6)]
    assert not list(kind_findings(Evaluation(tuple(r for each in kinds for r in each)), 3))


def test_a_poor_draft_has_no_traffic_finding() -> None:
    assert not list(traffic_findings(*conversations(30, 0.3), *conversations(30, 0.1, seed=1), 3))


def test_a_kind_that_is_predicted_poorly_is_named() -> None:
    good, poor = conversations(20, 0.6, category="prose"), conversations(10, 0.2, category="code", seed=1)
    (found,) = kind_findings(Evaluation(good[0].requests + poor[0].requests), 3)
    assert (found.kind, found.severity) == ("quality.domain", "warning") and "code" in found.subject
