"""04: what really entered the draft, against what it was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import arange

from eagle3lib.errors import InputError
from eagle3lib.findings.catalogue import make_finding
from eagle3lib.findings.edits import set_ids
from eagle3lib.findings.finding import Finding
from eagle3lib.findings.inspection import Inspection
from eagle3lib.findings.rules_layers import fc_states, layer_difference
from eagle3lib.maths.target import Target
from eagle3lib.measuring.replay import StageDiff, replay
from eagle3lib.measuring.streams import SHIFTS, Boundary, StreamMatch, rank_disagreement
from eagle3lib.reading.captures import AUX, Capture
from eagle3lib.reading.target_config import TargetConfig

#: Rounding keeps replicated states of two ranks far nearer than this; partial sums lie farther apart.
MAX_RANK_DIFFERENCE = 0.05


def known_target(inspection: Inspection) -> TargetConfig:
    """The target, which tells how wide a state is. Raises ``InputError`` where it was not given."""
    if inspection.target is None:
        raise InputError("target", "nothing", "the target's folder: its config tells how wide a state is")
    return inspection.target


def replayed(
    captures: Sequence[Capture], draft: str, target: Target, inspection: Inspection
) -> tuple[list[StageDiff], str]:
    """The engine's stages beside ours; where that is not possible, none and the reason."""
    try:
        return replay(captures, target.load_draft(draft), inspection.runnable_wiring), ""
    except InputError as error:
        return [], str(error)


def stage_findings(stages: Sequence[StageDiff]) -> Iterator[Finding]:
    """``capture.diverged``: from the same inputs the engine computes other numbers, first at this stage."""
    first = next((stage for stage in stages if not stage.ok), None)
    if first is not None:
        apart = f"relative error {first.relative:.3g}, rounding allows {first.tolerance:.0e}"
        evidence = f"On the engine's own inputs its {first.stage} differs from ours: {apart}; all stages before agree."
        yield make_finding("capture.diverged", first.stage, evidence)


def stream_findings(
    matches: Sequence[StreamMatch], expected: Sequence[Boundary] | None, inspection: Inspection
) -> Iterator[Finding]:
    """Captured streams against the boundaries the draft was trained on.

    ``expected``: in the order of ``fc``'s column blocks. Where it is not known the engine's own rule for this config
    takes its place, as a warning: what it captures is not what it should.
    """
    for match in matches:
        if match.boundary is None and match.scale != 1.0:
            times = f"{1 / match.scale:.0f} times this stream is boundary {match.nearest}, the stream itself is none"
            yield make_finding("aux.partial_sum", f"stream {match.stream}", times)
        elif match.boundary is None:
            nearest = f"boundary {match.nearest}: cosine {match.cosine:.4f}, relative error {match.relative_error:.3f}"
            yield make_finding("capture.unmatched", f"stream {match.stream}", f"nearest is {nearest}")
    shifted = [match for match in matches if match.boundary is not None and match.shift]
    if shifted:
        rows = [f"stream {m.stream}: row t holds boundary {m.boundary} of position t{m.shift:+d}" for m in shifted]
        yield make_finding("align.shift", "rows of fc's input", "; ".join(rows))
    trained = expected is not None
    known, source = (expected, "trained on") if trained else (inspection.captured_boundaries, "by the engine's rule")
    taken = fc_states(inspection)
    needed = len(expected) if trained else taken[0] if taken else len(matches)
    if matches and len(matches) != needed:
        there = ", ".join(f"{match.boundary}" for match in matches)
        evidence = f"{len(matches)} states were captured, fc takes {needed}; captured are the boundaries {there}"
        yield make_finding("aux.count", "fc's input", evidence, **(set_ids(expected, inspection) if trained else {}))
    elif (
        known
        and len(known) == needed
        and (kind := layer_difference([match.boundary for match in matches], known, inspection.layers))
    ):
        evidence = "; ".join(_line(match, f"{source} {want}") for match, want in zip(matches, known, strict=True))
        cure = {} if kind == "aux.order" or not trained else set_ids(known, inspection)
        yield make_finding(kind, "fc's input", evidence, severity="error" if trained else "warning", **cure)


def _line(match: StreamMatch, want: str) -> str:
    if match.boundary is None:
        return f"stream {match.stream} is no boundary, {want}"
    return (
        f"stream {match.stream} is boundary {match.boundary} (relative error {match.relative_error:.3f}, cosine "
        f"{match.cosine:.4f}; runner-up {match.runner_up} at {match.runner_up_cosine:.4f}), {want}"
    )


def capture_findings(captures: Sequence[Capture], hidden: int) -> list[Finding]:
    """Whether captures can be trusted: rows, layout, values, ranks, and the pairing of tokens and states.

    Args:
        hidden: the target's hidden size.
    """
    files = [finding for capture in captures for finding in _file_findings(capture, hidden)]
    return [*files, *_rank_findings(captures), *_pairing_findings(captures)]


def _file_findings(capture: Capture, hidden: int) -> Iterator[Finding]:
    aux = capture.aux_hidden_states
    positions, evidence = capture.positions.tolist(), ""
    rows = {"positions": len(positions), AUX: len(aux)}
    if capture.input_ids is not None:
        rows["input_ids"] = len(capture.input_ids)
    if len(set(rows.values())) > 1 or len(aux) == 0:
        evidence = ", ".join(f"{count} rows of {name}" for name, count in rows.items())
    elif positions != list(range(len(aux))):
        gaps = sorted(set(range(max(positions) + 1)) - set(positions))
        evidence = f"{len(gaps)} positions missing, from {gaps[0]}" if gaps else "positions repeat or run backwards"
    if evidence:
        yield make_finding("capture.truncated", capture.source, evidence)
    if aux.shape[-1] % hidden:
        evidence = f"width {aux.shape[-1]} is no multiple of the target's {hidden}"
        yield make_finding("capture.layout", capture.source, evidence)
    broken, empty = int((~aux.isfinite()).any(-1).sum()), int((aux == 0).all(-1).sum())
    if broken or empty:
        evidence = f"of {len(aux)} rows {broken} hold NaN or Inf, {empty} are all zero"
        yield make_finding("capture.nonfinite", capture.source, evidence)


def _rank_findings(captures: Sequence[Capture]) -> Iterator[Finding]:
    """Ranks hold copies of the same reduced states; where they do not, the sums were not reduced."""
    for request in dict.fromkeys(capture.request for capture in captures):
        ranks = [capture.aux_hidden_states for capture in captures if capture.request == request]
        alike = len(ranks) > 1 and len({rows.shape for rows in ranks}) == 1
        if alike and (difference := rank_disagreement(ranks)) > MAX_RANK_DIFFERENCE:
            evidence = f"the rows of its {len(ranks)} ranks differ by {difference:.0%}"
            yield make_finding("aux.partial_sum", f"request {request}", evidence)
            return


def _pairing_findings(captures: Sequence[Capture]) -> Iterator[Finding]:
    """The token whose embedding is paired with the state of token t must be token t + 1."""
    agreeing = dict.fromkeys(SHIFTS, 0)
    for capture in captures:
        ids, embedded = capture.input_ids, capture.stages.get("embedded_ids")
        if ids is None or embedded is None or len(ids) != len(embedded):
            continue
        for shift in SHIFTS:
            at = arange(len(ids)) + 1 + shift
            inside = (at >= 0) & (at < len(ids))
            agreeing[shift] += int((embedded.flatten()[inside] == ids[at[inside]]).sum())
    best = max(SHIFTS, key=lambda shift: agreeing[shift])
    if best and agreeing[best] > 2 * agreeing[0]:
        evidence = f"row t is paired with token t{1 + best:+d} in {agreeing[best]} rows, t+1 in {agreeing[0]}"
        yield make_finding("align.shift", "the draft's input ids", evidence)
