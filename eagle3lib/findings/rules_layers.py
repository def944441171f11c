"""Rules about the target states that the draft is fed: how many, which layers, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eagle3lib.engine.capture_ids import family_rule, ids_for
from eagle3lib.findings.catalogue import make_finding
from eagle3lib.findings.edits import set_config, set_ids
from eagle3lib.findings.finding import Finding
from eagle3lib.findings.inspection import Inspection
from eagle3lib.maths.wiring import default_boundaries
from eagle3lib.measuring.streams import Boundary
from eagle3lib.reading.draft_config import SGLANG_AUX_KEY


def fc_states(i: Inspection) -> tuple[int, int, str] | None:
    """States that the file's fc takes, their width, and the tensor's name."""
    info = i.tensor("fc.weight")
    width = i.target.hidden_size if i.target else i.draft.target_hidden_size or i.draft.hidden_size
    if info is None or len(info.shape) != 2 or not width or info.shape[1] % width:
        return None
    return info.shape[1] // width, width, info.name


def layer_difference(found: Sequence[Boundary | None], expected: Sequence[Boundary], layers: int) -> str | None:
    """The kind of finding that names it; ``None`` where every known state is the expected one.

    Both in the order of ``fc``'s column blocks, of a target of ``layers`` blocks; ``None`` in ``found`` is no boundary.
    """
    known = [(got, want) for got, want in zip(found, expected, strict=True) if got is not None]
    wrong = [pair for pair in known if pair[0] != pair[1]]
    if not wrong:
        return None
    if sorted(map(str, found)) == sorted(map(str, expected)):
        return "aux.order"
    if all({got, want} <= {layers, "final_norm"} for got, want in wrong):
        return "aux.final_boundary"
    offsets = {got - want if isinstance(got, int) and isinstance(want, int) else None for got, want in known}
    return "aux.ids_convention" if offsets in ({1}, {-1}) else "aux.layers"


def count(i: Inspection) -> Iterator[Finding]:
    taken, captured, sized = fc_states(i), i.served.captured, i.served.aux_count
    subject = "eagle_aux_hidden_state_layer_ids"
    wrong = i.refusals("repeat", "empty")
    if not i.draft.use_aux and (taken is None or taken[0] != 1):
        fed = f"fc takes {taken[0]} states" if taken else "an EAGLE-3 fc takes several"
        what = f"use_aux_hidden_state is false, so the draft gets the target's normed last state alone; {fed}."
        switch = "eagle_config.use_aux_hidden_state"
        yield make_finding("aux.count", switch, what, **set_config(switch, True))
    elif wrong:
        ids = f"the default layers of a target of {i.layers} blocks" if captured.default else f"ids {i.draft.aux_ids}"
        yield make_finding("aux.count", subject, f"{ids}: {wrong[0]}.", case="repeated")
    elif taken and (taken[0] != sized or captured and not captured.problems and taken[0] != len(captured.boundaries)):
        states, width, name = taken
        fed = len(captured.boundaries) if captured else sized
        what = f"{name} takes {states} states of width {width}, SGLang sizes fc for {sized} and captures {fed}."
        yield make_finding("aux.count", subject, what)


def target_family(i: Inspection) -> Iterator[Finding]:
    for refusal in i.refusals("family"):
        what = f"{refusal} ({i.target.architecture})."
        yield make_finding("arch.unsupported", "target architecture", what, case="target")


def unread(i: Inspection) -> Iterator[Finding]:
    captured, trained, place = i.served.captured, i.trained.boundaries, i.draft.aux_place
    if i.draft.aux_ids is None or SGLANG_AUX_KEY in i.draft.aux_found:
        return
    default = "[2, n//2, n-3]" if captured is None else list(captured.boundaries)
    what = (
        f"{place} holds {list(i.draft.aux_ids)}, meaning boundaries {list(trained or ())} ({i.trained.reason}). SGLang "
        f"{i.served.version} reads {SGLANG_AUX_KEY} alone and captures its default boundaries {default}."
    )
    if captured is None:
        yield make_finding("aux.ids_unread", place, what, case="no target")
    elif captured.boundaries not in i.trained.candidates:
        yield make_finding("aux.ids_unread", place, what, **set_ids(trained, i))


def _possible(i: Inspection, boundaries: tuple[int, ...]) -> bool:
    return ids_for(boundaries, i.target.family, i.target.layers, i.served.version).ids is not None


def _ids(i: Inspection) -> list[int]:
    return list(i.draft.aux_ids or ())


def _captured(i: Inspection) -> str:
    """The captured boundaries, and from which id each of them comes."""
    pairs = i.served.captured.pairs if i.served.captured else ()
    shown = ", ".join(f"{'default' if a is None else a} -> {'nothing' if b is None else b}" for a, b in pairs)
    return f"{list(i.captured_boundaries or ())} (id -> boundary: {shown})"


def other_layers(i: Inspection) -> Iterator[Finding]:
    """``aux.layers`` or ``aux.ids_convention``, where the engine reads the ids."""
    kind, trained = _difference(i), i.trained.boundaries
    if kind in ("aux.layers", "aux.ids_convention"):
        what = (
            f"Ids {_ids(i)} are captured on {i.target.family} as boundaries {_captured(i)}; trained on "
            f"{list(trained)} ({i.trained.reason})."
        )
        yield make_finding(kind, SGLANG_AUX_KEY, what, **set_ids(trained, i))


def _difference(i: Inspection) -> str | None:
    """How the captured boundaries differ from the trained ones, when the ids are read by the engine."""
    captured, trained = i.served.captured, i.trained.boundaries
    if captured is None or trained is None or captured.default or SGLANG_AUX_KEY not in i.draft.aux_found:
        return None
    wanted = tuple(sorted(trained))
    if captured.boundaries == wanted or i.refusals("family", "empty", "repeat") or not _possible(i, trained):
        return None  # other rules report it
    if len(captured.pairs) != len(wanted):
        return "aux.layers"
    return layer_difference([b for _, b in sorted(captured.pairs)], wanted, i.layers) or "aux.layers"


def two_readings(i: Inspection) -> Iterator[Finding]:
    captured, readings = i.served.captured, i.trained.candidates
    if captured is None or captured.problems or len(readings) < 2 or SGLANG_AUX_KEY not in i.draft.aux_found:
        return
    others = [list(reading) for reading in readings if reading != captured.boundaries]
    other = others[0]
    # default layers and the embedding are chosen on purpose, their neighbours hardly ever
    likely_wrong = tuple(other) == default_boundaries(i.layers) or 0 in other and 0 not in captured.boundaries
    what = (
        f"Ids {_ids(i)} fit two conventions: SGLang {i.served.version} captures {_captured(i)} on {i.target.family}; "
        f"in another numbering they mean {' or '.join(map(str, others))}: {i.trained.reason}."
    )
    remedy = f"Notebook 04 shows which it is. If trained on {other}: {set_ids(other, i)['remedy']}"
    severity = "warning" if likely_wrong or captured.boundaries not in readings else "note"
    yield make_finding(
        "aux.ids_convention", SGLANG_AUX_KEY, what, case="two readings", severity=severity, remedy=remedy
    )


def order(i: Inspection) -> Iterator[Finding]:
    ids, certain = _ids(i), i.draft.dialect == "angelslim"
    if ids == sorted(ids) or len(set(ids)) < len(ids):
        return
    rule = family_rule(i.target.family, i.served.version) if i.target else None
    if certain or i.draft.dialect == "sglang" and (rule is None or rule.shift != "first"):
        trained = list(i.trained.boundaries or ids)
        what = (
            f"{i.draft.aux_place} is {ids}, not ascending. SGLang gathers states in layer order "
            f"({list(i.captured_boundaries or ())}); fc's columns were trained as {trained} if in the list's order."
        )
        yield make_finding("aux.order", i.draft.aux_place, what, severity="error" if certain else "warning")


def final_boundary(i: Inspection) -> Iterator[Finding]:
    what, cure = next(iter(i.refusals("final")), ""), {}
    if what:
        cure = set_ids(i.trained.boundaries, i)
    elif i.draft.dialect == "angelslim" and i.target is not None and i.layers in (i.trained.boundaries or ()):
        what = f"hidden_states[{i.layers}] in training is after the final norm, boundary {i.layers} in SGLang before it"
    if what:
        yield make_finding(
            "aux.final_boundary", SGLANG_AUX_KEY, f"Ids {_ids(i)} at {i.draft.aux_place}: {what}.", **cure
        )


def embedding_state(i: Inspection) -> Iterator[Finding]:
    wanted = i.trained.boundaries or i.captured_boundaries or ()
    if i.target is not None and (i.refusals("embedding") or 0 in wanted and not _possible(i, wanted)):
        on = f"ids {_ids(i)} on {i.target.family}, SGLang {i.served.version}"
        what = f"The draft takes the target's embedding output (boundary 0) as a state; {on}."
        cure = set_ids(i.trained.boundaries or tuple(b or 0 for _, b in i.served.captured.pairs), i)
        yield make_finding("arch.unsupported", SGLANG_AUX_KEY, what, case="embedding", **cure)


def out_of_range(i: Inspection) -> Iterator[Finding]:
    bad = i.refusals("range")
    if bad and _difference(i) is None:
        what = f"{i.draft.aux_place} is {_ids(i)}: {'; '.join(bad)}."
        yield make_finding("config.out_of_range", i.draft.aux_place, what, case="layers")


RULES = (
    unread, other_layers, two_readings, order, final_boundary, embedding_state, out_of_range, count, target_family,
)  # fmt: skip
