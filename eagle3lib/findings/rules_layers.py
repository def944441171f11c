"""Rules about which target states are captured, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eagle3lib.engine.capture_ids import family_rule, ids_for
from eagle3lib.findings.boundaries import ids_remedy, layer_difference
from eagle3lib.findings.rule import Facts, Inspection, Rule
from eagle3lib.maths.wiring import default_boundaries
from eagle3lib.reading.draft_config import ENGINE_PLACE

_CAPTURE = "sgl-project/sglang srt/models/<target>.py set_eagle3_layers_to_capture"
_RESOLVE = (
    "sgl-project/sglang srt/model_executor/model_runner_components/spec_aux_hidden_state.py "
    "_resolve_eagle_aux_hidden_state"
)


def _facts(i: Inspection) -> dict[str, Any]:
    found = i.served.captured
    pairs = found.pairs if found else ()
    return {
        "ids": list(i.draft.aux_ids or ()),
        "place": i.draft.aux_place,
        "pairs": ", ".join(f"{'default' if a is None else a} -> {'nothing' if b is None else b}" for a, b in pairs),
        "captured": list(found.boundaries if found else ()),
        "trained": list(i.trained.boundaries or ()),
        "why": i.trained.reason,
        "family": i.target.family if i.target else "unknown",
    }


def _cured(i: Inspection, boundaries: tuple[int, ...] | None) -> dict[str, Any]:
    """The facts, with the ids that make the engine capture these boundaries."""
    if i.target is None or boundaries is None:
        return _facts(i)
    remedy, edits = ids_remedy(boundaries, i)
    return {**_facts(i), "remedy": remedy, "edits": edits}


def _possible(i: Inspection, boundaries: tuple[int, ...]) -> bool:
    return ids_for(boundaries, i.target.family, i.target.layers, i.served.version).ids is not None


def _unread(i: Inspection) -> Iterator[Facts]:
    if i.draft.aux_ids is None or ENGINE_PLACE in i.draft.aux_found:
        return
    if i.served.captured is None:
        remedy = "Give the target: then the ids that SGLang needs can be told."
        yield {**_facts(i), "severity": "note", "captured": "[2, n//2, n-3]", "remedy": remedy}
    elif i.served.captured.boundaries not in i.trained.candidates:
        yield _cured(i, i.trained.boundaries)


def _difference(i: Inspection) -> str | None:
    """How the captured boundaries differ from the trained ones, when the ids are read by the engine."""
    found, trained = i.served.captured, i.trained.boundaries
    if found is None or trained is None or found.default or ENGINE_PLACE not in i.draft.aux_found:
        return None
    wanted = tuple(sorted(trained))
    if found.boundaries == wanted or i.topics & {"family", "empty", "repeat"} or not _possible(i, trained):
        return None  # other rules say it
    if len(found.pairs) != len(wanted):
        return "aux.layers"
    return layer_difference([b for _, b in sorted(found.pairs)], wanted, i.layers) or "aux.layers"


def _differing(i: Inspection, kind: str) -> Iterator[Facts]:
    if _difference(i) == kind:
        yield _cured(i, i.trained.boundaries)


def _two_readings(i: Inspection) -> Iterator[Facts]:
    found, readings = i.served.captured, i.trained.candidates
    if found is None or found.problems or len(readings) < 2 or ENGINE_PLACE not in i.draft.aux_found:
        return
    others = [reading for reading in readings if reading != found.boundaries]
    other = others[0]
    # default layers and the embedding are chosen on purpose, their neighbours hardly ever
    likely_wrong = other == default_boundaries(i.layers) or 0 in other and 0 not in found.boundaries
    yield {
        **_facts(i),
        "others": " or ".join(str(list(reading)) for reading in others),
        "severity": "warning" if likely_wrong or found.boundaries not in readings else "note",
        "remedy": f"Notebook 04 tells which it is. If trained on {list(other)}: {_cured(i, other)['remedy']}",
    }


def _order(i: Inspection) -> Iterator[Facts]:
    ids = i.draft.aux_ids
    if ids is None or list(ids) == sorted(ids) or len(set(ids)) < len(ids):
        return
    certain = i.draft.dialect == "angelslim"
    rule = family_rule(i.target.family, i.served.version) if i.target else None
    if certain or i.draft.dialect == "sglang" and (rule is None or rule.shift != "first"):
        yield {**_facts(i), "severity": "error" if certain else "warning", "slots": list(i.trained.boundaries or ids)}


def _final(i: Inspection) -> Iterator[Facts]:
    said = [problem.text for problem in i.served.captured.problems if problem.topic == "final"] if i.topics else []
    if said:
        yield {**_cured(i, i.trained.boundaries), "what": said[0]}
    elif i.draft.dialect == "angelslim" and i.target is not None and i.layers in (i.trained.boundaries or ()):
        what = f"hidden_states[{i.layers}] in training is after the final norm, "
        yield {**_facts(i), "what": what + f"boundary {i.layers} in SGLang is before it"}


def _embedding(i: Inspection) -> Iterator[Facts]:
    if i.target is None:
        return
    wanted = i.trained.boundaries or i.captured_boundaries or ()
    if "embedding" in i.topics or 0 in wanted and not _possible(i, wanted):
        yield _cured(i, i.trained.boundaries or tuple(b or 0 for _, b in i.served.captured.pairs))


def _range(i: Inspection) -> Iterator[Facts]:
    if "range" in i.topics and _difference(i) is None:
        bad = [problem.text for problem in i.served.captured.problems if problem.topic == "range"]
        yield {**_facts(i), "what": "; ".join(bad)}


RULES = (
    Rule("aux.ids_unread", "error", "{place}", _unread,
         evidence="{place} holds {ids}, meaning boundaries {trained} ({why}). SGLang {version} reads "
         f"{ENGINE_PLACE} alone and captures its default boundaries "
         "{captured}.",
         consequence="The draft is fed other layers than it was trained on: expect an accept length near 1.",
         remedy=f"Write the ids where SGLang reads them: {ENGINE_PLACE}.",
         source=_RESOLVE),
    Rule("aux.ids_convention", "error", ENGINE_PLACE, lambda i: _differing(i, "aux.ids_convention"),
         evidence="Ids {ids} are captured on {family} as boundaries {captured} (id -> boundary: {pairs}); trained on "
         "{trained} ({why}).",
         consequence="Neighbouring layers look alike, so the loss is from 0.1 accepted token to a collapse (first "
         "position 10 % for 45 %).",
         source=_CAPTURE),
    Rule("aux.ids_convention", "note", ENGINE_PLACE, _two_readings,
         evidence="Ids {ids} fit two conventions: SGLang {version} captures {captured} on {family} (id -> boundary: "
         "{pairs}); in another numbering they mean {others}: {why}.",
         consequence="One of the two is what the weights were trained on, and files do not say which.",
         source=_CAPTURE),
    Rule("aux.layers", "error", ENGINE_PLACE, lambda i: _differing(i, "aux.layers"),
         evidence="Captured are boundaries {captured} (id -> boundary: {pairs}); trained on {trained} ({why}).",
         consequence="The draft is fed other layers than it was trained on: expect a loss at every position, down to "
         "1.00.",
         source=_CAPTURE),
    Rule("aux.order", "warning", "{place}", _order,
         evidence="{place} is {ids}, not ascending. SGLang gathers states in layer order ({captured}), whatever the "
         "list's order; fc's slots were trained as {slots} if in the list's order.",
         consequence="Every column block of fc would get another layer's state: a loss at every position.",
         remedy="Permute fc.weight's column blocks to ascending layers and sort the ids, or train in ascending order.",
         source="Tencent/AngelSlim target_model_wrapper.py _extract_auxiliary_hidden_states; " + _CAPTURE),
    Rule("aux.final_boundary", "error", ENGINE_PLACE, _final,
         evidence="Ids {ids} at {place}: {what}.",
         consequence="The state that the draft was trained on does not reach it.",
         remedy="Use a draft trained without the last block's output on this target.",
         source=_CAPTURE),
    Rule("arch.unsupported", "error", ENGINE_PLACE, _embedding,
         evidence="The draft takes the target's embedding output (boundary 0) as a state; ids {ids} on {family}, "
         "SGLang {version}.",
         consequence="The server stops at the first forward, or feeds another state.",
         source=_CAPTURE),
    Rule("config.out_of_range", "error", "{place}", _range,
         evidence="{place} is {ids}: {what}.",
         consequence="States are missing from fc's input: the server stops.",
         remedy="List layers that the target has.",
         source=_CAPTURE),
)  # fmt: skip
