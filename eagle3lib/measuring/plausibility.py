"""Numbers that no run can give, and rates under an old formula."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lib.measuring.acceptance import accepted_of, steps_of
from eagle3lib.reading.engine_reports import EngineReport, RequestReport

#: What two printed digits can hide.
ROUNDING = 0.006


def impossible(report: EngineReport, num_steps: int | None = None) -> list[str]:
    """Each contradiction within one request, as text with its numbers; the same text once."""
    return list(dict.fromkeys(text for request in report.requests for text in _contradictions(request, num_steps)))


def counts_bonus_in_rate(report: EngineReport, num_draft_tokens: int | None = None) -> str | None:
    """The evidence that a log's accept rate is accept length / draft tokens, as old SGLang printed it.

    Today's is (accept length - 1) / (draft tokens - 1), so a length and a rate printed together give the
    number of draft tokens under either formula. Told by ``num_draft_tokens`` where given, else where a rate
    is above 1.
    """
    for request in report.requests:
        length, share = request.stated.get("accept_length"), request.stated.get("accept_rate")
        if not length or not share:
            continue
        if share > 1:
            return f"accept rate {share:g} beside accept length {length:g}"
        if num_draft_tokens and num_draft_tokens > 1:
            today, before = (length - 1) / (num_draft_tokens - 1), length / num_draft_tokens
            if abs(share - before) <= ROUNDING < abs(share - today):
                return (
                    f"accept rate {share:g} is accept length {length:g} / {num_draft_tokens} draft tokens;"
                    f" accepted over proposed drafts is {today:.2f}"
                )
    return None


def counts_root_as_draft(report: EngineReport, num_draft_tokens: int | None) -> str | None:
    """The evidence that proposed drafts count all ``num_draft_tokens`` of a step, its root included."""
    counted = [(r.proposed, r.verify_steps) for r in report.requests if r.proposed and r.verify_steps]
    proposed, steps = sum(drafts for drafts, _ in counted), sum(count for _, count in counted)
    if not counted or num_draft_tokens is None or proposed != steps * num_draft_tokens:
        return None
    return f"{proposed} proposed in {steps} verify steps of {num_draft_tokens} draft tokens, root included"


def _contradictions(request: RequestReport, num_steps: int | None) -> Iterator[str]:
    histogram, steps, accepted = request.histogram, request.verify_steps, request.accepted
    counts = [*(histogram or ()), steps, accepted, request.proposed, request.completion_tokens, *(request.steps or ())]
    if any(count is not None and count < 0 for count in counts):
        yield "a negative count"
        return
    if histogram:
        if steps is not None and steps != steps_of(histogram):
            yield f"a histogram of {steps_of(histogram)} steps beside {steps} verify steps"
        if accepted is not None and accepted != accepted_of(histogram):
            yield f"a histogram of {accepted_of(histogram)} accepted drafts beside {accepted}"
        deepest = max((j for j, count in enumerate(histogram) if count), default=0)
        if num_steps is not None and deepest > num_steps:
            yield f"{deepest} accepted drafts in one step of {num_steps}"
    if accepted is not None and request.proposed and accepted > request.proposed:
        yield f"{accepted} drafts accepted of {request.proposed} proposed"
    if accepted and steps == 0:
        yield f"{accepted} drafts accepted in no verify step"
    if steps and request.completion_tokens and steps > request.completion_tokens:
        yield f"{steps} verify steps for {request.completion_tokens} completion tokens"
    if steps and num_steps is not None:
        if accepted is not None and accepted > steps * num_steps:
            yield f"{accepted} drafts accepted in {steps} verify steps of {num_steps}"
        # The token sampled at prefill is one more.
        if request.completion_tokens and request.completion_tokens > steps * (num_steps + 1) + 1:
            yield f"{request.completion_tokens} completion tokens in {steps} verify steps of {num_steps} drafts"
    if any(right > tried for right, tried in request.tried or ()):
        yield "more right than tried"
    length, share = request.stated.get("accept_length"), request.stated.get("accept_rate")
    if length is not None and (length < 0 or 0 < length < 1):
        yield f"accept length {length:g}: a verify step gives at least the bonus token"
    # The token sampled at prefill may add up to one.
    if length is not None and num_steps is not None and length > num_steps + 2:
        yield f"accept length {length:g} with {num_steps} draft steps"
    if share is not None and not 0 <= share <= 1:
        yield f"accept rate {share:g}: accepted drafts are a part of the proposed ones"
