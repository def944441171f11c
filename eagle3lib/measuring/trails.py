"""Verify steps in their order, each where it stood in its conversation, and acceptance broken down by that.

A trail comes from an offline walk or from steps that the stream of a served request gave in order; the rest is
the same for both. Counts add over requests; a part's interval resamples all requests, also those without a
step in it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eagle3lib.errors import InputError
from eagle3lib.measuring.prediction import Walk
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.samples import Sample, read_samples

#: Parts of a length axis hold about as many steps each.
PARTS = 6


@dataclass(frozen=True)
class Step:
    """One verify step: ``accepted`` drafts; the first of them would be token ``at`` of the conversation.

    ``first``: the first step after a prefill, whose draft state comes from the prompt alone.
    """

    accepted: int
    at: int
    first: bool


@dataclass(frozen=True)
class Trail:
    """The steps of one request, in order. ``tokens``: its ids where known; beyond them nothing is asked."""

    name: str
    steps: tuple[Step, ...]
    num_steps: int
    prompt_tokens: int
    category: str | None = None
    tokens: tuple[int, ...] | None = None

    @property
    def accepted(self) -> int:
        return sum(step.accepted for step in self.steps)

    def tried(self) -> list[tuple[int, bool]]:
        """Every token that a draft was verified against, and whether it was right.

        A draft after the first wrong one was never verified. The token that ends a chain is the one that the
        target put in the wrong draft's place.
        """
        found = []
        for step in self.steps if self.tokens else ():
            asked = step.accepted + (step.accepted < self.num_steps)
            for depth, token in enumerate(self.tokens[step.at : step.at + asked]):
                found.append((token, depth < step.accepted))
        return found


@dataclass(frozen=True)
class Part:
    """Acceptance of the steps that have something in common; ``first_position``: drafts right at depth 1."""

    label: str
    accept_length: Rate
    first_position: Rate
    requests: int
    #: Where the part lies on a length axis: its least and its greatest value.
    span: tuple[int, int] | None = None


def from_walk(walk: Walk, sample: Sample, num_steps: int) -> Trail:
    """``walk`` as :func:`evaluation.sample_walks` gives it: starts count from the prompt's last token."""
    begins = {begin + 1 for begin, _ in sample.replies}
    places = [start + sample.prompt_tokens + 1 for start in walk.starts]
    steps = tuple(Step(n, at, at in begins) for n, at in zip(walk.accepted, places, strict=True))
    ids = tuple(sample.input_ids.tolist())
    return Trail(sample.name, steps, num_steps, sample.prompt_tokens, sample.category, ids)


def from_report(report: EngineReport, num_steps: int, path: str | Path = "") -> list[Trail]:
    """The requests of which the stream showed every step in order; none of a report that has no such.

    ``path``: where the reports were read from, for the token ids where the file holds them.
    """
    ids = _token_ids(report, Path(path))
    trails = []
    for number, request in enumerate(report.requests):
        if not request.steps or request.prompt_tokens is None:
            continue
        steps, at = [], request.prompt_tokens + 1  # the prefill's token is known
        for accepted in request.steps:
            steps.append(Step(accepted, at, not steps))
            at += accepted + 1
        name = f"{report.source}:{number + 1}"
        trails.append(Trail(name, tuple(steps), num_steps, request.prompt_tokens, request.category, ids.get(number)))
    return trails


def _token_ids(report: EngineReport, path: Path) -> dict[int, tuple[int, ...]]:
    file = path / report.source if path.is_dir() else path
    if file.suffix != ".jsonl" or not file.is_file():
        return {}
    try:
        samples = list(read_samples(file))
    except InputError:  # ordinary meta_info, without ids
        return {}
    if len(samples) != len(report.requests):
        return {}
    return {number: tuple(sample.input_ids.tolist()) for number, sample in enumerate(samples)}


def parts(trails: Sequence[Trail], key: Callable[[Trail, Step], Hashable | None]) -> dict[Hashable, Part]:
    """Steps put together by ``key``; those for which it is ``None`` are left out."""
    labels = dict.fromkeys(label for t in trails for s in t.steps if (label := key(t, s)) is not None)
    found = {}
    for label in labels:
        own = [[step.accepted for step in trail.steps if key(trail, step) == label] for trail in trails]
        counts = [len(steps) for steps in own]
        found[label] = Part(
            str(label),
            rate([sum(steps) + len(steps) for steps in own], counts),
            rate([sum(accepted > 0 for accepted in steps) for steps in own], counts),
            sum(map(bool, counts)),
        )
    return found


def by_category(trails: Sequence[Trail]) -> list[Part]:
    """The categories of the prompts, as named there; the lowest accept length first."""
    found = parts(trails, lambda trail, step: trail.category)
    return sorted(found.values(), key=lambda part: part.accept_length.value or 0.0)


def first_and_rest(trails: Sequence[Trail]) -> list[Part]:
    """The first step after a prefill apart from all others; empty where one of the two has no step."""
    names = {True: "first after prefill", False: "all others"}
    found = parts(trails, lambda trail, step: step.first)
    return [replace(found[first], label=names[first]) for first in (True, False)] if len(found) == 2 else []


def by_position(trails: Sequence[Trail]) -> list[Part]:
    """Along the conversation: tokens before the first drafted one."""
    return _along(trails, lambda trail, step: step.at)


def by_prompt_length(trails: Sequence[Trail]) -> list[Part]:
    """By the length of the prompt, in tokens."""
    return _along(trails, lambda trail, step: trail.prompt_tokens)


def _along(trails: Sequence[Trail], length: Callable[[Trail, Step], int]) -> list[Part]:
    """Parts of about as many steps each; equal lengths stay together."""
    values = sorted(length(trail, step) for trail in trails for step in trail.steps)
    edges = sorted({values[len(values) * part // PARTS] for part in range(PARTS)}) if values else []

    def place(trail: Trail, step: Step) -> int:
        return max(edge for edge in edges if edge <= length(trail, step))

    found = parts(trails, place)
    spans = {edge: [v for v in values if v >= edge and (after is None or v < after)] for edge, after in _pairs(edges)}
    return [
        replace(found[edge], label=f"{spans[edge][0]} to {spans[edge][-1]}", span=(spans[edge][0], spans[edge][-1]))
        for edge in edges
    ]


def _pairs(edges: Sequence[int]) -> Iterable[tuple[int, int | None]]:
    return zip(edges, [*edges[1:], None], strict=True)


def by_kind(trails: Sequence[Trail], kind: Callable[[int], str]) -> dict[str, Rate]:
    """Drafts right of those verified, by the kind of the true token; the worst first."""
    tried = [[(kind(token), right) for token, right in trail.tried()] for trail in trails if trail.tokens]
    kinds = {label for request in tried for label, _ in request}
    found = {
        label: rate(
            [sum(right for name, right in request if name == label) for request in tried],
            [sum(name == label for name, _ in request) for request in tried],
        )
        for label in kinds
    }
    return dict(sorted(found.items(), key=lambda item: (item[1].value or 0.0, item[0])))


def worst(trails: Sequence[Trail], count: int = 5, least: int = 5) -> list[Trail]:
    """The requests of at least ``least`` steps with the lowest accept length, lowest first."""
    known = [trail for trail in trails if len(trail.steps) >= least]
    return sorted(known, key=lambda trail: trail.accepted / len(trail.steps))[:count]
