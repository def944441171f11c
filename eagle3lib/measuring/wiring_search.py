"""The wiring under which a draft's weights predict best, and what follows about wiring and model.

Cheap passes over a few rows of a few samples separate good wirings from bad ones (``SampleSearch``). What they leave is
measured in full, by the accept length of the walk of verify steps, with gains paired by request.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft, before_head, combine, depth_states, rows_of
from eagle3lib.maths.draft_weights import head_weight, target_ids
from eagle3lib.maths.kernels import rms_norm
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.accuracy import Evaluation, Request, evaluate
from eagle3lib.measuring.prediction import accept_counts
from eagle3lib.measuring.rates import LEVEL, Rate, is_significant, paired_difference
from eagle3lib.measuring.sample_states import Progress, SampleStates, spread
from eagle3lib.measuring.wiring_candidates import CandidateSearch, describe, least_changed

Answer = Literal["sound", "wiring", "model", "both", "undecided"]

#: A first position below this on the draft's own kind of text is undertrained.
GOOD_FIRST = 0.4
#: An interval about it wider than this decides nothing.
WIDE = 0.15
#: The smallest gain in accept length worth a change, as a share: below it, other wirings look alike.
MATERIAL = 0.03
#: Requests below which none is called better: two may agree by chance.
LEAST_REQUESTS = 3
#: A gain so large, as a share, that no wiring which is as good comes near it: its plain interval is enough.
LARGE = 0.3
#: A stream that costs this much likelihood a token (in nats) is worse than none.
HARM = 0.05
#: Samples in cheap passes; of each, the rows before the first start and the starts. Four samples are too few to test a
#: difference: blocks of so many starts stand in for requests.
PARTS, CONTEXT, STARTS, BLOCK = 4, 48, 64, 16
#: Bytes of projected streams that are kept: of a wide draft those of a climb, not all that were ever asked for.
KEPT = 256 << 20


@dataclass(frozen=True)
class Candidate:
    """A wiring measured on all samples. ``gain`` is in accept length over the configured wiring.

    ``shown``: the gain is significant among all that were measured in full (``is_significant``). ``near``: of the
    best, the other changes that these samples do not distinguish from it.
    """

    change: str
    wiring: Wiring
    conditional_depth1: Rate
    accept_length: Rate
    gain: float
    gain_ci: tuple[float, float] | None
    shown: bool = False
    near: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "change": self.change, "boundaries": list(self.wiring.boundaries),
            "conditional_depth1": self.conditional_depth1, "accept_length": self.accept_length,
            "gain": self.gain, "gain_ci": self.gain_ci,
        }  # fmt: skip


@dataclass(frozen=True)
class Search:
    """Candidates, best first, the configured wiring among them.

    ``harmful_aux_states``: indices of those that the draft is better without, under the best wiring: their column
    blocks of ``fc`` were trained on none of the states given. ``passes``: wirings tried, most of them on a few rows.
    ``cost``: all of it, in units of the time that one wiring takes over all samples.
    """

    candidates: tuple[Candidate, ...]
    configured: Wiring
    harmful_aux_states: tuple[int, ...]
    passes: int
    cost: float

    @property
    def as_configured(self) -> Candidate:
        return next(c for c in self.candidates if c.wiring == self.configured)

    @property
    def better(self) -> Candidate | None:
        """The best wiring, where it is shown to be better, and by enough to matter."""
        best = self.candidates[0]
        return best if best.shown and self._matters(best) else None

    def _matters(self, best: Candidate, share: float = MATERIAL) -> bool:
        return best.gain >= share * (self.as_configured.accept_length.value or 1)

    @property
    def trained_boundaries(self) -> tuple[int, ...] | None:
        """The boundaries these weights were trained on, where the search is sure of them."""
        if self.better:
            return self.better.wiring.boundaries
        return self.configured.boundaries if self.answer == "sound" else None

    @property
    def answer(self) -> Answer:
        """Is the wiring at fault, or the model? ``undecided`` where the samples are too few to decide.

        So too where a wiring looks better, beyond a plain 95 % interval, and is not shown to be.
        """
        first = (self.better or self.as_configured).conditional_depth1
        if first.ci is None or first.value is None:
            return "undecided"
        if self.better:
            return "both" if first.ci[1] < GOOD_FIRST else "wiring"
        top = self.candidates[0]
        looks_better = top.gain_ci is not None and top.gain_ci[0] > 0 and self._matters(top)
        if looks_better or (first.ci[0] < GOOD_FIRST <= first.ci[1] and first.ci[1] - first.ci[0] > WIDE):
            return "undecided"
        if first.value >= GOOD_FIRST:
            return "sound"
        return "undecided" if self._matters(top, LARGE) else "model"  # the better-looking one is not refuted


def search_wiring(
    draft: Draft,
    configured: Wiring,
    dataset: Iterable[SampleStates],
    num_steps: int = 3,
    layers: int | None = None,
    ids: Sequence[int] | None = None,
    bases: Sequence[float] = (),
    progress: Progress = lambda share, what: None,
) -> Search:
    """Try other wirings on the same samples and rank the best by predicted accept length.

    Args:
        dataset: gone through twice, one at a time: for the few rows of the cheap passes, and for all rows under
            the wirings that these leave.
        layers: blocks of the target; ``ids``: the capture ids as the config spells them; ``bases``: further
            RoPE bases, such as the target's. All optional; each adds candidates.
        progress: called with the share done and what is tried next.

    Raises:
        InputError: no sample, or a configured boundary whose states are not at hand.
    """
    begun = perf_counter()
    parts, available = _parts(dataset, configured)
    search = SampleSearch(draft, configured, parts, available, bases, progress)
    chosen = search.search(layers, ids)
    seconds, evaluations = _measured(draft, chosen, dataset, num_steps, progress)
    candidates = _ranked(configured, chosen, evaluations, search.explained, num_steps)
    harmful = search.harmful_aux_states(candidates[0].wiring)
    progress(1.0, "done")
    cost = (perf_counter() - begun) / (seconds / len(chosen))
    return Search(tuple(candidates), configured, harmful, search.passes + len(chosen), cost)


def _parts(dataset: Iterable[SampleStates], configured: Wiring) -> tuple[list[SampleStates], list[int]]:
    """A few rows of a few samples, evenly spread over all, and the boundaries at hand in every sample."""
    sets: list[set[int]] = []

    def cut(sample_states: SampleStates) -> SampleStates:
        sets.append(set(sample_states.states))
        return sample_states.part(CONTEXT, STARTS + 2)

    parts = spread(map(cut, dataset), PARTS)
    if not sets:
        raise InputError("samples", "none", "at least one sample")
    available = sorted(set.intersection(*sets))
    if missing := [k for k in configured.boundaries if k not in available]:
        raise InputError("boundaries", f"no states at {missing}", f"states at {list(configured.boundaries)}")
    return parts, available


def _measured(
    draft: Draft, chosen: Sequence[Wiring], dataset: Iterable[SampleStates], num_steps: int, progress: Progress
) -> tuple[float, list[Evaluation]]:
    """Seconds of computing, and every wiring over all samples and depths; a sample is read once for all of them."""
    requests: list[list[Request]] = [[] for _ in chosen]
    seconds = 0.0
    for count, sample_states in enumerate(dataset, 1):
        if count.bit_count() == 1:  # 1, 2, 4, 8 ...
            progress(0.7, f"in full: {len(chosen)} wirings, sample {count}")
        begun = perf_counter()
        for wiring, own in zip(chosen, requests, strict=True):
            own.append(evaluate(draft, wiring, sample_states.sample, sample_states.stack(wiring.boundaries), num_steps))
        seconds += perf_counter() - begun
    return seconds, [Evaluation(tuple(own)) for own in requests]


def _ranked(
    configured: Wiring, chosen: Sequence[Wiring], evaluations: Sequence[Evaluation], explained: Container[Wiring],
    num_steps: int,
) -> list[Candidate]:  # fmt: skip
    """Best first. ``chosen[0]`` is ``configured``.

    A wiring must be clearly better where no known mistake explains it.
    """
    counts = {
        wiring: accept_counts(evaluation.steps(num_steps))
        for wiring, evaluation in zip(chosen, evaluations, strict=True)
    }
    base = counts[configured]
    usual, others, requests = sum(base[0]) / max(sum(base[1]), 1), max(len(chosen) - 1, 1), len(base[0])
    candidates = []
    for wiring, evaluation in zip(chosen, evaluations, strict=True):
        better = paired_difference(*counts[wiring], *base)
        plain = better.ci is not None and better.ci[0] > 0
        large = plain and (better.value or 0.0) >= LARGE * usual and requests > LEAST_REQUESTS
        shown = large or (
            requests >= LEAST_REQUESTS and is_significant(better, requests, others, 2 * LEVEL)
        )  # one side
        candidates.append(
            Candidate(
                describe(wiring, configured), wiring, evaluation.depths()[0].conditional,
                evaluation.accept_length(num_steps), better.value or 0.0, better.ci,
                shown,
            )
        )  # fmt: skip

    def rank(candidate: Candidate) -> float:
        return (candidate.wiring not in explained) * MATERIAL * usual - candidate.gain

    def rival(first: Candidate, other: Candidate) -> bool:
        """Whether the first is not surely and materially ahead of the other one, both better than configured."""
        ahead = paired_difference(*counts[first.wiring], *counts[other.wiring])
        unsure = ahead.ci is None or ahead.ci[0] <= 0 or (ahead.value or 0.0) < MATERIAL * usual
        return first.shown and other.shown and unsure

    def changes(candidate: Candidate) -> tuple[bool, int, int, float]:
        """Neighbouring layers look alike to few samples: boundaries that nobody configured count, but the embedding."""
        strange = sum(k not in (0, *configured.boundaries) for k in candidate.wiring.boundaries)
        unexplained = candidate.wiring not in explained
        return unexplained, strange, len(configured.differences(candidate.wiring)), rank(candidate)

    best, near, rest = least_changed(sorted(candidates, key=rank), rival, changes)
    return [replace(best, near=tuple(each.change for each in near)), *rest]


class SampleSearch(CandidateSearch):
    """Scored by the mean log-likelihood of the true next tokens at depths 1 and 2, on a few rows of a few samples.

    Likelihoods distinguish wirings on far fewer rows than right and wrong proposals do.
    """

    def __init__(
        self, draft: Draft, configured: Wiring, parts: Sequence[SampleStates], available: Sequence[int],
        bases: Sequence[float] = (), progress: Progress = lambda share, what: None,
    ) -> None:  # fmt: skip
        super().__init__(draft, configured, available, bases, progress)
        self.parts = sorted(parts, key=lambda part: -len(part.sample.input_ids))  # the longest is the rough one
        each = (CONTEXT + STARTS + 2) * draft.width * draft.norm.element_size()
        self.projected = lru_cache(max(KEPT // each, 1))(self._projected)
        self.head_rows: dict[tuple[str, str, str], tuple[Tensor, Tensor]] = {}
        self.blocks: dict[Wiring, tuple[list[float], list[int]]] = {}
        self.passes = 0

    def score(self, wiring: Wiring, rough: bool) -> float:
        if rough:
            return _mean(self._likelihoods(wiring, parts=1, depths=1))
        self.blocks[wiring] = self._likelihoods(wiring)
        return _mean(self.blocks[wiring])

    def worse(self, wiring: Wiring, than: Wiring, comparisons: int) -> bool:
        lost = paired_difference(*self.blocks[wiring], *self.blocks[than])
        requests = sum(rows > 0 for rows in self.blocks[than][1])
        return (lost.value or 0.0) < 0 and is_significant(lost, requests, comparisons, 2 * LEVEL)  # one side

    def harmful_aux_states(self, wiring: Wiring) -> tuple[int, ...]:
        """Slots without whose stream the draft is better."""
        whole = _mean(self._likelihoods(wiring))
        indices = range(len(wiring.boundaries))
        return tuple(k for k in indices if _mean(self._likelihoods(wiring, without=k)) > whole + HARM)

    def _likelihoods(
        self, wiring: Wiring, parts: int = PARTS, depths: int = 2, without: int | None = None
    ) -> tuple[list[float], list[int]]:
        """Sums and rows of each block; ``without`` leaves out one aux state, by its index."""
        self.passes += 1
        count = STARTS // BLOCK
        sums, rows = [0.0] * (count * len(self.parts)), [0] * (count * len(self.parts))
        for part, states in enumerate(self.parts[:parts]):
            tokens, first = states.sample.input_ids, states.sample.prompt_tokens - 1
            if first >= rows_of(tokens, wiring):
                continue  # a shift that leaves this short reply no start
            hidden = self._combined(wiring, part, without)
            for depth, state in enumerate(depth_states(self.draft, wiring, hidden, tokens, depths, first), 1):
                truth = tokens[first + 1 + depth :][: min(len(state), STARTS)]
                likelihood = self._likelihood(wiring, state[: len(truth)], truth)
                for place, block in enumerate(likelihood.split(BLOCK), part * count):
                    sums[place] += float(block.sum())
                    rows[place] += len(block)
        return sums, rows

    def _likelihood(self, wiring: Wiring, state: Tensor, truth: Tensor) -> Tensor:
        """Log-likelihoods ``[S]`` among the true tokens and about a thousand others.

        None counts for less than a blind guess, as does a token that the draft vocabulary lacks: a draft that is
        sure and wrong proposes nothing worse than one that is unsure.
        """
        state = before_head(self.draft, wiring, state)
        weight, ids = self._head_rows(wiring)
        match = truth.to(ids.device)[:, None] == ids
        log_p = torch.log_softmax(torch.nn.functional.linear(state, weight).float(), -1)
        log_p = log_p.gather(1, match.int().argmax(1, keepdim=True))[:, 0]
        blind = -math.log(len(ids))
        return torch.where(match.any(1), log_p, blind).clamp(min=blind)

    def _head_rows(self, wiring: Wiring) -> tuple[Tensor, Tensor]:
        """Rows of lm_head and their target ids: every true token of the parts, and others evenly."""
        key = (wiring.head, wiring.d2t, wiring.embedding)
        if key not in self.head_rows:
            weight, ids = head_weight(self.draft, wiring), target_ids(self.draft, wiring)
            ids = torch.arange(len(weight), device=weight.device) if ids is None else ids
            truth = torch.cat([part.sample.input_ids for part in self.parts]).to(ids.device)
            chosen = torch.isin(ids, truth)
            chosen[:: len(ids) // 1024 + 1] = True
            self.head_rows[key] = weight[chosen].to(self.draft.norm.dtype), ids[chosen]
        return self.head_rows[key]

    def _combined(self, wiring: Wiring, part: int, without: int | None) -> Tensor:
        """What ``combine`` gives, from the projection of each aux state alone: ``fc`` is linear."""
        if wiring.norm_before_fc:  # one norm over all aux states
            stack = self.parts[part].stack(wiring.boundaries)
            if without is not None:
                stack[:, without] = 0
            return combine(self.draft, wiring, stack)
        bias = self.draft.fc.bias
        rows = len(self.parts[part].sample.input_ids)
        hidden = self.draft.fc.weight.new_zeros(rows, self.draft.width) + (0 if bias is None else bias)
        for index, boundary in enumerate(wiring.boundaries):
            if index != without:
                hidden = hidden + self.projected(part, index, boundary, wiring.fc_norm)
        return hidden

    def _projected(self, part: int, index: int, boundary: int, normed: bool) -> Tensor:
        """``[T, H]``: what the aux state at ``index`` adds to ``fc``'s output where it is this boundary."""
        state = self.parts[part].states[boundary].to(self.draft.norm.device, self.draft.norm.dtype)
        if normed:
            state = rms_norm(state, self.draft.fc_norms[index], self.draft.eps)
        width = self.draft.fc.weight.shape[1] // self.draft.num_aux_hidden_states
        return torch.nn.functional.linear(state, self.draft.fc.weight[:, index * width : (index + 1) * width])


def _mean(blocks: tuple[Sequence[float], Sequence[int]]) -> float:
    sums, rows = blocks
    return sum(sums) / sum(rows) if sum(rows) else -math.inf
