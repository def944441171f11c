"""All verify steps of a source in one table, one row a step, and acceptance broken down by its columns.

Rows come from a prediction or from steps that the stream of a served request gave in order; the rest is the same for
both. Columns:

    request, name   number and name of the request
    category        of its prompt, None where not known
    prompt_tokens   length of its prompt
    num_steps       drafts a step can accept
    at              the first draft would be token ``at`` of the conversation
    first           the first step after a prefill, whose draft state comes from the prompt alone
    accepted        drafts accepted
    tokens          the request's token ids, None where not known

Counts add over requests; an interval resamples the requests that have a step in the group.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from eagle3lib.measuring.accuracy import Request
from eagle3lib.measuring.prediction import VerifySteps
from eagle3lib.measuring.rates import Rate, rate
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.samples import Sample

COLUMNS = ("request", "name", "category", "prompt_tokens", "num_steps", "at", "first", "accepted", "tokens")
#: Groups along a length hold about as many steps each, at least so many, of so many prompts.
GROUPS, LEAST_STEPS, LEAST_REQUESTS = 6, 40, 3


@dataclass(frozen=True)
class Group:
    """Acceptance of the steps that have something in common."""

    label: str
    accept_length: Rate
    requests: int
    #: Where the group lies on a length axis: its least and its greatest value.
    span: tuple[int, int] | None = None


def predicted_steps(requests: Iterable[tuple[VerifySteps, Sample | Request]], num_steps: int) -> pd.DataFrame:
    """The steps that ``verify_sample`` gives: their starts count from the prompt's last token.

    A step begins where the one before it ended; one that does not is the first of a reply.
    """
    rows: list[dict[str, Any]] = []
    for number, (steps, of) in enumerate(requests):
        tokens, end = tuple(of.input_ids.tolist()) if isinstance(of, Sample) else None, -1
        same = {"request": number, "name": of.name, "category": of.category, "prompt_tokens": of.prompt_tokens,
                "num_steps": num_steps, "tokens": tokens}  # fmt: skip
        for accepted, start in zip(steps.accepted, steps.starts, strict=True):
            rows.append(same | {"at": start + of.prompt_tokens + 1, "first": start != end, "accepted": accepted})
            end = start + accepted + 1
    return pd.DataFrame(rows, columns=COLUMNS)


def served_steps(report: EngineReport) -> pd.DataFrame:
    """The steps of the requests of which the stream showed every one in order; no row for the others."""
    deepest = max((accepted for request in report.requests for accepted in request.steps or ()), default=0)
    rows: list[dict[str, Any]] = []
    for number, request in enumerate(report.requests):
        if not request.steps or request.prompt_tokens is None:
            continue
        at = request.prompt_tokens + 1  # the prefill's token is known
        same = {"request": number, "name": f"{report.source}:{number + 1}", "category": request.category,
                "prompt_tokens": request.prompt_tokens, "num_steps": report.setting.num_steps or deepest,
                "tokens": request.sample and tuple(request.sample.input_ids.tolist())}  # fmt: skip
        for place, accepted in enumerate(request.steps):
            rows.append(same | {"at": at, "first": place == 0, "accepted": accepted})
            at += accepted + 1
    return pd.DataFrame(rows, columns=COLUMNS)


def per_request(steps: pd.DataFrame, chosen: pd.Series | None = None) -> pd.DataFrame:
    """For every request of ``steps`` the sums over its ``chosen`` rows, 0 where it has none.

    Columns: ``tokens`` given, bonus tokens counted; verify ``steps``; ``right``: those that accept a draft.
    """
    mine = np.ones(len(steps), dtype=int) if chosen is None else chosen.astype(int)
    counted = pd.DataFrame({
        "request": steps["request"], "tokens": (steps["accepted"] + 1) * mine, "steps": mine,
        "right": (steps["accepted"] > 0) * mine,
    })  # fmt: skip
    return counted.groupby("request").sum().astype(int)


def groups(steps: pd.DataFrame, by: pd.Series) -> dict[Hashable, Group]:
    """Accept length of the steps with each value of ``by``; those for which it is missing are left out."""
    most = 1 + float(steps["num_steps"].max()) if len(steps) else 1.0
    found = {}
    for label, own in steps.groupby(by, sort=False):
        counts = per_request(own)
        length = rate(counts["tokens"], counts["steps"])
        if length.ci is not None:  # an accept length cannot leave 1 to num_steps + 1, however few the requests
            length = replace(length, ci=(max(length.ci[0], 1.0), min(length.ci[1], most)))
        found[label] = Group(str(label), length, len(counts))
    return found


def by_category(steps: pd.DataFrame) -> list[Group]:
    """The categories of the prompts, as named there; the lowest accept length first."""
    return sorted(groups(steps, steps["category"]).values(), key=lambda group: group.accept_length.value or 0.0)


def first_and_rest(steps: pd.DataFrame) -> list[Group]:
    """The first step after a prefill apart from all others; empty where one of the two has no step."""
    found = groups(steps, steps["first"].map({True: "first after prefill", False: "all others"}))
    return [found[label] for label in ("first after prefill", "all others")] if len(found) == 2 else []


def by_position(steps: pd.DataFrame) -> list[Group]:
    """Along the conversation: tokens before the first drafted one."""
    return _along(steps, steps["at"], len(steps) // LEAST_STEPS)


def by_prompt_length(steps: pd.DataFrame) -> list[Group]:
    """By the length of the prompt, in tokens."""
    return _along(steps, steps["prompt_tokens"], steps["request"].nunique() // LEAST_REQUESTS)


def _along(steps: pd.DataFrame, length: pd.Series, most: int) -> list[Group]:
    """Groups of about as many steps each, at most ``most``; equal lengths stay together."""
    if steps.empty:
        return []
    values, count = np.sort(length.to_numpy(dtype=int)), max(1, min(GROUPS, most))
    edges = np.unique(values[[len(values) * group // count for group in range(count)]])
    place = pd.Series(np.searchsorted(edges, length.to_numpy(dtype=int), side="right"), index=steps.index)
    spans = length.groupby(place).agg(["min", "max"])
    found = groups(steps, place)
    return [
        replace(found[group], label=f"{low} to {high}", span=(int(low), int(high)))
        for group, low, high in spans.itertuples()
    ]


def verified_tokens(steps: pd.DataFrame) -> pd.DataFrame:
    """Every token that a draft was verified against, ``token``, and whether the draft was ``right``, by ``request``.

    A draft after the first wrong one was never verified. The token that ends a chain is the one that the target put in
    the wrong draft's place. No row where the ids are not known.
    """
    rows = [
        (step.request, token, depth < step.accepted)
        for step in steps.dropna(subset="tokens").itertuples()
        for depth, token in enumerate(step.tokens[step.at : step.at + step.accepted + (step.accepted < step.num_steps)])
    ]
    return pd.DataFrame(rows, columns=("request", "token", "right"))


def by_kind(steps: pd.DataFrame, kind: Callable[[int], str]) -> dict[str, Rate]:
    """Drafts right of those verified, by the kind of the true token; the worst first."""
    tokens = verified_tokens(steps)
    kinds = {token: kind(token) for token in tokens["token"].unique()}
    found = {}
    for label, own in tokens.groupby(tokens["token"].map(kinds), sort=True):
        counts = own.groupby("request")["right"].agg(["sum", "size"])
        found[label] = rate(counts["sum"], counts["size"])
    return dict(sorted(found.items(), key=lambda item: (item[1].value or 0.0, item[0])))


def worst(steps: pd.DataFrame, count: int = 5, least: int = 5) -> pd.DataFrame:
    """The requests of at least ``least`` steps with the lowest accept length, lowest first, one row each."""
    found = steps.groupby("request", as_index=False).agg(
        name=("name", "first"), category=("category", "first"), prompt_tokens=("prompt_tokens", "first"),
        steps=("accepted", "size"), accepted=("accepted", "sum"), tokens=("tokens", "first"),
    )  # fmt: skip
    found["accept_length"] = 1 + found["accepted"] / found["steps"]
    return found[found["steps"] >= least].sort_values("accept_length", kind="stable").head(count)


def concatenated(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Several tables as one, each request with a number of its own."""
    whole, offset = [], 0
    for table in tables:
        whole.append(table.assign(request=table["request"] + offset))
        offset = int(whole[-1]["request"].max()) + 1 if len(table) else offset
    return pd.concat(whole, ignore_index=True) if whole else pd.DataFrame(columns=COLUMNS)
