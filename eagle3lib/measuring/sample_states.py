"""Samples with the target's states, one at a time: memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.target import Target
from eagle3lib.reading.samples import Sample, Samples, check_vocab

Item = TypeVar("Item")
#: Called with the share that is done and what comes next.
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class SampleStates:
    """A sample with its states, ``[T, H_t]`` by boundary: all of them, or the captured ones."""

    sample: Sample
    states: Mapping[int, Tensor]

    @classmethod
    def of(cls, sample: Sample, states: Tensor, boundaries: Sequence[int], embedding: Tensor | None) -> SampleStates:
        """From ``states [T, K, H_t]`` at ``boundaries``; ``embedding [V_t, H_t]`` gives boundary 0 where it is missing.

        (Boundary 0 is the embedding's row; a target that scales it, such as Gemma, must give states itself.)
        """
        by_boundary = dict(zip(boundaries, states.unbind(1), strict=True))
        if embedding is not None:
            by_boundary.setdefault(0, embedding[sample.input_ids].to(states))
        return cls(sample, by_boundary)

    def stack(self, boundaries: Sequence[int]) -> Tensor:
        """``[T, K, H_t]`` in that order. Raises ``InputError`` where one of them is missing."""
        if missing := [k for k in boundaries if k not in self.states]:
            cure = "give samples of token ids and a target that can run here, or samples with these states"
            raise InputError(self.sample.name, f"no states at {missing}", f"states at {list(boundaries)}", cure)
        return torch.stack([self.states[k] for k in boundaries], dim=1)

    def part(self, before: int, after: int) -> SampleStates:
        """Copies of the rows around the first start of the reply, so that the rest can be freed."""
        whole, prompt = self.sample, self.sample.prompt_tokens
        start = max(0, prompt - before)
        rows = slice(start, prompt + after)
        cut = replace(
            whole, input_ids=whole.input_ids[rows], loss_mask=whole.loss_mask[rows],
            prompt_tokens=prompt - start, states=None, boundaries=None, last_hidden_state=None,
        )  # fmt: skip
        return SampleStates(cut, {k: state[rows].clone() for k, state in self.states.items()})


@dataclass(frozen=True)
class StatesDataset:
    """What ``read_samples`` gives, with states. Each loop reads or computes them anew and holds one at a time.

    A file whose states do not fit is counted among ``refused``; a target that cannot run stops the loop.

    ``boundaries``: those to compute where a file holds none, all if left out. ``assumed``: see ``sample_states``.
    """

    samples: Samples
    target: Target
    boundaries: tuple[int, ...] | None = None
    assumed: tuple[int, ...] | None = None

    def __iter__(self) -> Iterator[SampleStates]:
        given = 0
        for sample in self.samples:
            try:
                with_states = sample_states(sample, self.target, self.boundaries, self.assumed)
            except InputError as error:
                if sample.states is None:
                    raise
                self.refused[sample.name] = error
                continue
            given += 1
            yield with_states
        if not given:
            raise next(iter(self.refused.values()))

    @property
    def refused(self) -> dict[str, InputError]:
        """By file, why the last loop could not use it."""
        return self.samples.refused

    def first(self) -> SampleStates:
        """The first one, without a change to what the last loop counted."""
        return next(iter(replace(self, samples=replace(self.samples, refused={}))))

    def at(self, boundaries: Iterable[int]) -> StatesDataset:
        """The same; where states are computed, only these."""
        return replace(self, boundaries=tuple(dict.fromkeys(boundaries)))

    def spread(self, count: int) -> StatesDataset:
        """About ``count`` of them, evenly spread over what the last loop gave."""
        return replace(self, samples=self.samples.spread(count))


def sample_states(
    sample: Sample, target: Target, boundaries: Sequence[int] | None = None, assumed: Sequence[int] | None = None,
) -> SampleStates:  # fmt: skip
    """A sample with its states: those in its file, else computed by the target and kept in its cache.

    Args:
        boundaries: those to compute, all where left out.
        assumed: what the states of a file are that does not name their boundaries; without it such a file is
            refused, for states under a wrong name give wrong numbers.
    """
    check_vocab(sample, target.embedding.shape[0])
    if sample.states is None:
        states = target.states(sample.input_ids, boundaries)
        return SampleStates.of(sample, states, boundaries or range(states.shape[1]), target.embedding)
    known = sample.boundaries or assumed
    if known is None or len(known) != sample.states.shape[1]:
        raise InputError(
            sample.name, f"{sample.states.shape[1]} states at unknown boundaries", "their boundaries",
            "write them into the file's metadata as `boundaries`, a JSON list",
        )  # fmt: skip
    return SampleStates.of(sample, sample.states, known, target.embedding)


def spread(items: Iterable[Item], count: int) -> list[Item]:
    """``count`` items, about evenly spread, of a stream of unknown length; at most twice as many are held."""
    kept: list[Item] = []
    stride = 1
    for place, item in enumerate(items):
        if place % stride == 0:
            kept.append(item)
        if len(kept) == 2 * count:
            kept, stride = kept[::2], 2 * stride
    if len(kept) <= count:
        return kept
    return [kept[i * len(kept) // count] for i in range(count)]
