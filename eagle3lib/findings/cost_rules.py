"""05: drafts that are accepted and still do not pay."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lib.findings.finding import Finding
from eagle3lib.measuring.sweep import Summary

#: Half a draft token a verify step is accepted beside the bonus token: the draft does its part.
ACCEPTED_WELL = 1.5


def cost_findings(summaries: Sequence[Summary], *, on_cpu: bool) -> list[Finding]:
    """``cost.not_worth_it`` for every load at which no setting is shown to pay and one accepted well is
    shown to lose.

    Args:
        on_cpu: the points were measured on a CPU, where verifying several tokens costs as much as decoding
            them one by one: what is found there is a note, for it says nothing about a GPU.
    """
    findings = []
    for load in sorted({summary.concurrency for summary in summaries}):
        here = [summary for summary in summaries if summary.concurrency == load]
        losing = [summary for summary in here if summary.loses and (summary.accept_length or 0) >= ACCEPTED_WELL]
        if not losing or any(summary.pays for summary in here):
            continue
        findings.append(
            Finding(
                "cost.not_worth_it",
                "note" if on_cpu else "warning",
                f"concurrency {load}",
                "; ".join(_line(summary) for summary in losing),
                "Drafting and verifying cost more than the accepted tokens save"
                + (", as always on a CPU: this says nothing about a GPU." if on_cpu else " at this load."),
                "Measure on the GPU that will serve." if on_cpu else _REMEDY,
            )
        )
    return findings


_REMEDY = (
    "Serve without speculation at this load, or with fewer steps and draft tokens; check that CUDA graphs "
    "cover the batch sizes (--cuda-graph-max-bs) for verify and draft."
)


def _line(summary: Summary) -> str:
    interval = "" if summary.speedup_ci is None else f" ({summary.speedup_ci[0]:.2f} to {summary.speedup_ci[1]:.2f})"
    return (
        f"{'/'.join(map(str, summary.setting))}: accept length {summary.accept_length:.2f}, "
        f"{summary.tokens_per_second:.1f} tokens/s, {summary.speedup:.2f} times no speculation{interval}"
    )
