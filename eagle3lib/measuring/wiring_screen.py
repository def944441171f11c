"""Cheap passes over a few rows of a few samples, that tell good wirings from bad ones.

Wirings are scored by the likelihood that the draft gives to the true next tokens, which tells them apart on
far fewer rows than right and wrong do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from eagle3lib.maths.draft import Draft, before_head, combine, depth_states, rows_of
from eagle3lib.maths.kernels import rms_norm
from eagle3lib.maths.vocabulary import head_weight, target_ids
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.sample_states import Progress, SampleStates
from eagle3lib.measuring.wiring_candidates import slot_changes

#: A stream that costs this much likelihood a token (in nats) is worse than none.
IDLE = 0.05
#: Samples in cheap passes; of each, the rows before the first start and the starts.
PARTS, CONTEXT, STARTS = 4, 48, 64
#: Bytes of projected streams that are kept: of a wide draft those of a climb, not all that were ever asked for.
KEPT = 256 << 20


class Screen:
    """Cheap passes and what they gave: the mean log-likelihood of the true tokens at depths 1 and 2."""

    def __init__(self, draft: Draft, parts: Sequence[SampleStates], progress: Progress) -> None:
        self.draft, self.parts, self.progress = draft, parts, progress
        self.scores: dict[Wiring, float] = {}
        each = (CONTEXT + STARTS + 2) * draft.width * draft.norm.element_size()
        self.projected = lru_cache(max(KEPT // each, 1))(self._projected)
        self.words: dict[tuple[str, str, str], tuple[Tensor, Tensor]] = {}
        self.passes = 0

    def best(self, count: int) -> list[Wiring]:
        return sorted(self.scores, key=lambda wiring: -self.scores[wiring])[:count]

    def try_all(self, wirings: Sequence[Wiring], share: float, words: str) -> None:
        self.progress(share, words)
        for wiring in wirings:
            if wiring not in self.scores:
                self.scores[wiring] = self.score(wiring, range(len(self.parts)))

    def ascend(self, wiring: Wiring, available: Sequence[int], share: float) -> Wiring:
        """Change one slot at a time while it helps, so that a change of all slots is found."""
        self.progress(share, f"other layers for each slot of {list(wiring.boundaries)}")
        for _ in range(2):
            before = wiring
            for slot in range(self.draft.num_aux_hidden_states):
                tried = slot_changes(wiring, slot, available)
                heats = {other: self.score(other, [0], depths=1) for other in tried}
                final = sorted(tried, key=lambda other: -heats[other])[:3]
                self.try_all(final, share, f"slot {slot} of {list(wiring.boundaries)}")
                wiring = max([wiring, *final], key=lambda other: self.scores[other])
            if wiring == before:
                break
        return wiring

    def idle_slots(self, wiring: Wiring) -> tuple[int, ...]:
        everything = range(len(self.parts))
        whole = self.score(wiring, everything)
        without = [self.score(wiring, everything, without=slot) for slot in range(self.draft.num_aux_hidden_states)]
        return tuple(slot for slot, score in enumerate(without) if score > whole + IDLE)

    def score(self, wiring: Wiring, parts: Iterable[int], depths: int = 2, without: int | None = None) -> float:
        """Mean over rows and depths; ``without`` leaves out the stream of one slot."""
        self.passes += 1
        total, rows = 0.0, 0
        for part in parts:
            tokens, first = self.parts[part].sample.input_ids, self.parts[part].sample.prompt_tokens - 1
            if first >= rows_of(tokens, wiring):
                continue  # a shift that leaves this short reply no start
            hidden = self._combined(wiring, part, without)
            for depth, state in enumerate(depth_states(self.draft, wiring, hidden, tokens, depths, first), 1):
                truth = tokens[first + 1 + depth :][: len(state)]
                total += self._likelihood(wiring, state[: len(truth)], truth)
                rows += len(truth)
        return total / rows if rows else float("-inf")

    def _likelihood(self, wiring: Wiring, state: Tensor, truth: Tensor) -> float:
        """Sum of log-likelihoods among the true words and about a thousand others.

        None counts for less than a blind guess, as does a word that the draft does not have: a draft that is
        sure and wrong proposes nothing worse than one that is unsure.
        """
        state = before_head(self.draft, wiring, state)
        weight, ids = self._words(wiring)
        match = truth.to(ids.device)[:, None] == ids
        said = torch.log_softmax(torch.nn.functional.linear(state, weight).float(), -1)
        said = said.gather(1, match.int().argmax(1, keepdim=True))[:, 0]
        blind = -math.log(len(ids))
        return float(torch.where(match.any(1), said, blind).clamp(min=blind).sum())

    def _words(self, wiring: Wiring) -> tuple[Tensor, Tensor]:
        """Rows of the head and their target ids: every true word of the parts, and others evenly."""
        key = (wiring.head, wiring.d2t, wiring.embedding)
        if key not in self.words:
            weight, ids = head_weight(self.draft, wiring), target_ids(self.draft, wiring)
            ids = torch.arange(len(weight), device=weight.device) if ids is None else ids
            truth = torch.cat([part.sample.input_ids for part in self.parts]).to(ids.device)
            chosen = torch.isin(ids, truth)
            chosen[:: len(ids) // 1024 + 1] = True
            self.words[key] = weight[chosen].to(self.draft.norm.dtype), ids[chosen]
        return self.words[key]

    def _combined(self, wiring: Wiring, part: int, without: int | None) -> Tensor:
        """What ``combine`` gives, from the projection of each slot alone: ``fc`` is linear in its slots."""
        if wiring.norm_before_fc:  # one norm over all slots
            stack = self.parts[part].stack(wiring.boundaries)
            if without is not None:
                stack[:, without] = 0
            return combine(self.draft, wiring, stack)
        bias = self.draft.fc.bias
        rows = len(self.parts[part].sample.input_ids)
        hidden = self.draft.fc.weight.new_zeros(rows, self.draft.width) + (0 if bias is None else bias)
        for slot, boundary in enumerate(wiring.boundaries):
            if slot != without:
                hidden = hidden + self.projected(part, slot, boundary, wiring.fc_norm)
        return hidden

    def _projected(self, part: int, slot: int, boundary: int, normed: bool) -> Tensor:
        """``[T, H]``: what one slot adds to ``fc``'s output where it is fed this boundary."""
        state = self.parts[part].states[boundary].to(self.draft.norm.device, self.draft.norm.dtype)
        if normed:
            state = rms_norm(state, self.draft.fc_norms[slot], self.draft.eps)
        width = self.draft.fc.weight.shape[1] // self.draft.num_aux_hidden_states
        return torch.nn.functional.linear(state, self.draft.fc.weight[:, slot * width : (slot + 1) * width])
