"""Acceptance counts in text: SGLang's log, vLLM's log, Prometheus text.

Each parser returns one mapping of ``RequestReport`` fields per window or counter set, and nothing where the
text is of another kind.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Entry = dict[str, Any]
NUMBER = r"(-?\d+(?:\.\d+)?|nan)"
SGLANG_WINDOW = re.compile(rf"accept len: {NUMBER}(?:, accept rate: {NUMBER})?")
SGLANG_RUNNING = re.compile(r"#running-req: (\d+)")
VLLM_WINDOW = re.compile(
    rf"Mean acceptance length: {NUMBER}.*?Accepted: (\d+) tokens, Drafted: (\d+) tokens"
    r"(?:, Per-position acceptance rate: ([\d., ]+?), Avg)?"
)
VLLM = "vllm:spec_decode_"
SGLANG = "sglang:spec_"


def sglang_log(text: str) -> list[Entry]:
    """One entry a ``Decode batch`` line (``metrics_reporter.py``): the window's means and its running
    requests.

    A window without running requests reports zeros, and one of a server that does not speculate nothing.
    """
    entries: list[Entry] = []
    for line in text.splitlines():
        if match := SGLANG_WINDOW.search(line):
            names = ("accept_length", "accept_rate")
            stated = {name: float(value) for name, value in zip(names, match.groups(), strict=True) if value}
            running = SGLANG_RUNNING.search(line)
            weight = float(running[1]) if running else 1.0
            entries.append({"stated": {} if match[1] == "nan" else stated, "weight": weight})
        elif "Decode batch" in line:
            entries.append({})
    return entries


def vllm_log(text: str) -> list[Entry]:
    """One entry a ``SpecDecoding metrics`` line. Steps are drafted tokens over positions."""
    entries = []
    for match in VLLM_WINDOW.finditer(text):
        length, accepted, drafted = float(match[1]), int(match[2]), int(match[3])
        entry: Entry = {"accepted": accepted, "proposed": drafted, "stated": {"accept_length": length}}
        if match[4]:
            shares = [float(share) for share in match[4].split(",")]
            steps, left = divmod(drafted, len(shares))
            entry |= from_shares(steps, [] if left else shares, accepted)
        entries.append(entry)
    return entries


def prometheus(text: str) -> list[Entry]:
    """SGLang's gauges or vLLM's counters, added over engines; ``[]`` where neither is there."""
    if VLLM not in text and SGLANG not in text:
        return []
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples if math.isfinite(sample.value)]
    totals, positions = Counter(), Counter()
    ranks: dict[tuple[tuple[str, str], ...], dict[str, float]] = defaultdict(dict)
    for sample in samples:
        name = sample.name.removesuffix("_total")
        if name == VLLM + "num_accepted_tokens_per_pos":
            positions[int(sample.labels["position"])] += sample.value
        elif name.startswith(VLLM):
            totals[name.removeprefix(VLLM)] += sample.value
        elif sample.name.startswith(SGLANG):
            ranks[tuple(sorted(sample.labels.items()))][sample.name.removeprefix(SGLANG)] = sample.value
    if totals or positions:
        entry = from_positions(int(totals["num_drafts"]), [int(positions[position]) for position in sorted(positions)])
        if not positions:
            entry["accepted"] = int(totals["num_accepted_tokens"])
        return [entry | {"proposed": int(totals["num_draft_tokens"])}]
    wanted = ("accept_length", "accept_rate")
    return [{"stated": {name: gauges[name] for name in wanted if name in gauges}} for gauges in ranks.values()]


def from_positions(steps: int | None, accepted_at: Sequence[int]) -> Entry:
    """Counts from vLLM's form: of ``steps`` verify steps, ``accepted_at[i]`` accepted position i + 1.

    A draft token is accepted only after all before it, so the steps that accepted exactly j are those that
    accepted position j less those that accepted position j + 1.
    """
    if not accepted_at:
        return {"verify_steps": steps}
    histogram = tuple(before - after for before, after in pairwise([steps, *accepted_at, 0]))
    return {"histogram": histogram, "verify_steps": steps, "accepted": sum(accepted_at)}


def from_shares(steps: int, shares: Sequence[float], accepted: int | None) -> Entry:
    """The same from shares of the steps. They are rounded: only where they give back the exact total of
    ``accepted`` drafts are they counts."""
    counts = [round(share * steps) for share in shares]
    return from_positions(steps, counts if sum(counts) == accepted else [])
