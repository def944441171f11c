"""Two lists of boundaries side by side: what kind of difference it is, and which ids cure it."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lib.engine.capture_ids import VERSIONS, ids_for
from eagle3lib.findings.finding import Edit
from eagle3lib.findings.inspection import Inspection
from eagle3lib.measuring.streams import Boundary
from eagle3lib.reading.draft_config import ENGINE_PLACE


def layer_difference(found: Sequence[Boundary | None], expected: Sequence[Boundary], layers: int) -> str | None:
    """The kind of finding that names it; ``None`` where every known state is the expected one.

    Both in the order of ``fc``'s slots, of a target of ``layers`` blocks; ``None`` in ``found`` is no boundary.
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


def ids_remedy(expected: Sequence[Boundary], inspection: Inspection) -> tuple[str, tuple[Edit, ...]]:
    """Words and edit that make the engine capture these boundaries of its target, or why nothing does."""
    target, version = inspection.target, inspection.served.version
    wanted = [boundary for boundary in expected if isinstance(boundary, int)]
    if len(wanted) < len(expected):
        return "SGLang captures no state after the final norm: train on the state before it.", ()
    found = ids_for(wanted, target.family, target.layers, version)
    if found.ids is None:
        newer = ids_for(wanted, target.family, target.layers, VERSIONS[-1]).ids
        also = f" SGLang {VERSIONS[-1]} does: {ENGINE_PLACE} = {list(newer)}." if newer else ""
        return f"Not possible by config: {found.reason}.{also}", ()
    legal = " (SGLang adds 1 to an id here: -1 is the embedding)" if -1 in found.ids else ""
    return f"Set {ENGINE_PLACE} to {list(found.ids)}: {found.reason}{legal}.", (
        Edit("draft config", ENGINE_PLACE, list(found.ids)),
    )
