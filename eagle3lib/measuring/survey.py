"""What a set of samples is, from one pass over it: lengths, vocabulary, states, and what the last state means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from eagle3lib.maths.target import Target
from eagle3lib.measuring.accuracy import covered
from eagle3lib.measuring.last_state import LastState
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.measuring.sample_states import SampleStates


@dataclass(frozen=True)
class Survey:
    """``prompts`` and ``lengths``: tokens of each sample. ``coverage``: of the generated tokens, those that the draft
    vocabulary has. ``boundaries``: those that every sample has; ``named``: every file says which they are.
    ``norms``: by boundary, the root-mean-square of a typical (median) row of each sample.
    """

    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    coverage: Rate
    boundaries: tuple[int, ...]
    named: bool
    layouts: tuple[str, ...]
    norms: Mapping[int, tuple[float, ...]]
    last: LastState

    @property
    def longest(self) -> int:
        return max(self.lengths)


def survey(dataset: Iterable[SampleStates], boundaries: Sequence[int], ids: Tensor | None, target: Target) -> Survey:
    """``boundaries``: those whose norms are measured; ``ids [V_d]``: the draft vocabulary, ``None``: the target's."""
    prompts, lengths, counts = [], [], []
    norms: dict[int, list[float]] = {k: [] for k in boundaries}
    layouts: set[str] = set()
    common: set[int] | None = None
    last, named = LastState(), True
    for sample_states in dataset:
        sample = sample_states.sample
        prompts.append(sample.prompt_tokens)
        lengths.append(len(sample.input_ids))
        counts.append(covered(sample.input_ids, sample.loss_mask, ids))
        common = set(sample_states.states) if common is None else common & set(sample_states.states)
        named = named and (sample.states is None or sample.boundaries is not None)
        layouts.add(sample.layout or "ours")
        for k in norms.keys() & sample_states.states.keys():
            norms[k].append(float(sample_states.states[k].float().square().mean(-1).sqrt().median()))
        last.add(sample, target)
    inside, generated = zip(*counts, strict=True)
    return Survey(
        tuple(prompts), tuple(lengths), rate(inside, generated), tuple(sorted(common or ())), named,
        tuple(sorted(layouts)), {k: tuple(values) for k, values in norms.items()}, last,
    )  # fmt: skip
