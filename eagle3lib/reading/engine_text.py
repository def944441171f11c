"""Acceptance counts in text: SGLang's log, vLLM's log, Prometheus text.

Each parser returns one mapping of ``RequestReport`` fields per window or counter set, and nothing where the
text is of another kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
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
    entries = []
    for line in text.splitlines():
        if match := SGLANG_WINDOW.search(line):
            length, rate = match.groups()
            stated = {"accept_length": float(length)}
            if rate is not None:
                stated["accept_rate"] = float(rate)
            running = SGLANG_RUNNING.search(line)
            weight = float(running[1]) if running else 1.0
            entries.append({"stated": {} if length == "nan" else stated, "weight": weight})
        elif "Decode batch" in line:
            entries.append({})
    return entries


def vllm_log(text: str) -> list[Entry]:
    """One entry a ``SpecDecoding metrics`` line. Steps are drafted tokens over positions."""
    entries = []
    for match in VLLM_WINDOW.finditer(text):
        length, accepted, drafted, rates = match.groups()
        entry: Entry = {"accepted": int(accepted), "proposed": int(drafted), "stated": {"accept_length": float(length)}}
        if rates:
            positions = [float(rate) for rate in rates.split(",")]
            steps = int(drafted) // len(positions)
            counts = [round(rate * steps) for rate in positions]
            # Printed rates have three digits: only where they give back the exact total are they counts.
            exact = sum(counts) == int(accepted) and steps * len(positions) == int(drafted)
            entry |= from_positions(steps, counts) if exact else {"verify_steps": steps}
        entries.append(entry)
    return entries


def prometheus(text: str) -> list[Entry]:
    """SGLang's gauges or vLLM's counters, added over engines; ``[]`` where neither is there."""
    if VLLM not in text and SGLANG not in text:
        return []
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples if math.isfinite(sample.value)]
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    for sample in samples:
        name = sample.name.removesuffix("_total")
        if name == VLLM + "num_accepted_tokens_per_pos":
            position = int(sample.labels["position"])
            positions[position] = positions.get(position, 0) + sample.value
        elif name.startswith(VLLM):
            totals[name] = totals.get(name, 0) + sample.value
    if totals or positions:
        steps = int(totals.get(VLLM + "num_drafts", 0))
        entry = from_positions(steps, [int(positions[position]) for position in sorted(positions)])
        if not positions:
            entry |= {"accepted": int(totals.get(VLLM + "num_accepted_tokens", 0))}
        return [entry | {"proposed": int(totals.get(VLLM + "num_draft_tokens", 0))}]
    gauges = {"accept_length": SGLANG + "accept_length", "accept_rate": SGLANG + "accept_rate"}
    return [
        {"stated": {key: sample.value for key, name in gauges.items() for sample in group if sample.name == name}}
        for group in _by_rank([sample for sample in samples if sample.name.startswith(SGLANG)])
    ]


def _by_rank(samples: Sequence[Any]) -> list[list[Any]]:
    ranks: dict[tuple[tuple[str, str], ...], list[Any]] = {}
    for sample in samples:
        ranks.setdefault(tuple(sorted(sample.labels.items())), []).append(sample)
    return list(ranks.values())


def from_positions(steps: int, accepted_at: Sequence[int]) -> Mapping[str, Any]:
    """Counts from vLLM's form: of ``steps`` verify steps, ``accepted_at[i]`` accepted position i + 1.

    A draft token is accepted only after all before it, so the steps that accepted exactly j are those that
    accepted position j less those that accepted position j + 1.
    """
    if not accepted_at:
        return {"verify_steps": steps}
    histogram = tuple(before - after for before, after in pairwise([steps, *accepted_at, 0]))
    return {"histogram": histogram, "verify_steps": steps, "accepted": sum(accepted_at)}
