"""Verify steps in their order, each where it stood in its conversation, and acceptance broken down by that.

A trail comes from an offline walk or from steps that the stream of a served request gave in order; the rest is
the same for both. Counts add over requests; a part's interval resamples the requests that have a step in it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eagle3lib.measuring.evaluation import Request
from eagle3lib.measuring.prediction import VerifySteps
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.measuring.served import served_requests
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.samples import Sample

#: Parts of a length axis hold about as many steps each, at least so many, of so many prompts.
PARTS, LEAST_STEPS, LEAST_REQUESTS = 6, 40, 3


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
    """Acceptance of the steps that have something in common."""

    label: str
    accept_length: Rate
    requests: int
    #: Where the part lies on a length axis: its least and its greatest value.
    span: tuple[int, int] | None = None


def from_walk(walk: VerifySteps, of: Sample | Request, num_steps: int) -> Trail:
    """``walk`` as :func:`evaluation.sample_walk` gives it: starts count from the prompt's last token.

    A step begins where the one before it ended; one that does not is the first of a reply.
    """
    steps, after = [], -1
    for accepted, start in zip(walk.accepted, walk.starts, strict=True):
        steps.append(Step(accepted, start + of.prompt_tokens + 1, start != after))
        after = start + accepted + 1
    ids = tuple(of.input_ids.tolist()) if isinstance(of, Sample) else None
    return Trail(of.name, tuple(steps), num_steps, of.prompt_tokens, of.category, ids)


def from_report(report: EngineReport, path: str | Path = "") -> list[Trail]:
    """The requests of which the stream showed every step in order; none of a report that has no such.

    ``path``: where the reports were read from, for the token ids where the file holds them.
    """
    ids = {id(request): tuple(sample.input_ids.tolist()) for request, sample in served_requests(report, Path(path))}
    deepest = max((accepted for request in report.requests for accepted in request.steps or ()), default=0)
    num_steps, trails = report.setting[0] or deepest, []
    for number, request in enumerate(report.requests):
        if not request.steps or request.prompt_tokens is None:
            continue
        steps, at = [], request.prompt_tokens + 1  # the prefill's token is known
        for accepted in request.steps:
            steps.append(Step(accepted, at, not steps))
            at += accepted + 1
        name = f"{report.source}:{number + 1}"
        trails.append(
            Trail(name, tuple(steps), num_steps, request.prompt_tokens, request.category, ids.get(id(request)))
        )
    return trails


def parts(trails: Sequence[Trail], key: Callable[[Trail, Step], Hashable | None]) -> dict[Hashable, Part]:
    """Steps put together by ``key``; those for which it is ``None`` are left out."""
    by_key: dict[Hashable, list[list[int]]] = {}  # accepted drafts of each request that has such steps
    for trail in trails:
        own: dict[Hashable, list[int]] = {}
        for step in trail.steps:
            if (label := key(trail, step)) is not None:
                own.setdefault(label, []).append(step.accepted)
        for label, accepted in own.items():
            by_key.setdefault(label, []).append(accepted)
    most = 1 + max((trail.num_steps for trail in trails), default=0)
    return {label: _part(str(label), requests, most) for label, requests in by_key.items()}


def _part(label: str, requests: Sequence[Sequence[int]], most: int) -> Part:
    counts = [len(accepted) for accepted in requests]
    lengths = rate([sum(accepted) + len(accepted) for accepted in requests], counts)
    if lengths.ci is not None:  # an accept length cannot leave 1 to num_steps + 1, however few the requests
        lengths = replace(lengths, ci=(max(lengths.ci[0], 1.0), min(lengths.ci[1], float(most))))
    return Part(label, lengths, len(requests))


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
    steps = sum(len(trail.steps) for trail in trails)
    return _along(trails, lambda trail, step: step.at, steps // LEAST_STEPS)


def by_prompt_length(trails: Sequence[Trail]) -> list[Part]:
    """By the length of the prompt, in tokens."""
    return _along(trails, lambda trail, step: trail.prompt_tokens, len(trails) // LEAST_REQUESTS)


def _along(trails: Sequence[Trail], length: Callable[[Trail, Step], int], most: int) -> list[Part]:
    """Parts of about as many steps each, at most ``most``; equal lengths stay together."""
    values = sorted(length(trail, step) for trail in trails for step in trail.steps)
    count = max(1, min(PARTS, most))
    edges = sorted({values[len(values) * part // count] for part in range(count)}) if values else []

    def place(trail: Trail, step: Step) -> int:
        return max(edge for edge in edges if edge <= length(trail, step))

    found, along = parts(trails, place), []
    for edge, after in zip(edges, [*edges[1:], None], strict=True):
        inside = [value for value in values if value >= edge and (after is None or value < after)]
        along.append(replace(found[edge], label=f"{inside[0]} to {inside[-1]}", span=(inside[0], inside[-1])))
    return along


def by_kind(trails: Sequence[Trail], kind: Callable[[int], str]) -> dict[str, Rate]:
    """Drafts right of those verified, by the kind of the true token; the worst first."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for trail in trails:
        tried = [(kind(token), right) for token, right in trail.tried()]
        for label in {name for name, _ in tried}:
            own = [right for name, right in tried if name == label]
            counts.setdefault(label, []).append((sum(own), len(own)))
    found = {label: rate(*zip(*pairs, strict=True)) for label, pairs in counts.items()}
    return dict(sorted(found.items(), key=lambda item: (item[1].value or 0.0, item[0])))


def worst(trails: Sequence[Trail], count: int = 5, least: int = 5) -> list[Trail]:
    """The requests of at least ``least`` steps with the lowest accept length, lowest first."""
    known = [trail for trail in trails if len(trail.steps) >= least]
    return sorted(known, key=lambda trail: trail.accepted / len(trail.steps))[:count]
