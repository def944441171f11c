"""The edits of remedies, and a draft's config with them applied: 01's corrected config and a cured run get the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3lib.engine.capture_ids import VERSIONS, ids_for
from eagle3lib.engine.loading import NORM_PLACES
from eagle3lib.findings.finding import Edit
from eagle3lib.findings.inspection import Inspection
from eagle3lib.measuring.streams import Boundary
from eagle3lib.reading.draft_config import SGLANG_AUX_KEY, DraftConfig

#: Fields of other programs, which SGLang does not need once their content is at the top level.
_FOREIGN = (
    "transformer_layer_config", "speculators_config", "speculators_model_type", "speculators_version", "auto_map",
    "has_no_defaults_at_init", "aux_hidden_states_layer_ids", "eagle_aux_hidden_state_layer_ids",
)  # fmt: skip


def set_config(key: str, value: Any) -> dict[str, Any]:
    """Remedy and edit that set one field of the draft's config; ``None`` removes it."""
    remedy = f"Remove {key}." if value is None else f"Set {key} to {json.dumps(value)}."
    return {"remedy": remedy, "edits": [Edit("draft config", key, value)]}


def set_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """Remedy and edits that give flags of the launch line these values."""
    words = " ".join(f"{flag} {value}" for flag, value in values.items())
    return {"remedy": f"Use {words}.", "edits": [Edit("launch", flag, value) for flag, value in values.items()]}


def drop_flag(flag: str) -> dict[str, Any]:
    """Remedy and edit that take one flag off the launch line."""
    return {"remedy": f"Drop {flag}.", "edits": [Edit("launch", flag, None)]}


def set_ids(boundaries: Sequence[Boundary] | None, inspection: Inspection) -> dict[str, Any]:
    """Remedy and edit that make the engine capture these boundaries, or the reason why nothing does.

    Empty where they or the target are not known.
    """
    target, version = inspection.target, inspection.served.version
    if target is None or boundaries is None:
        return {}
    if "final_norm" in boundaries:
        return {"remedy": "SGLang captures no state after the final norm: train on the state before it."}
    found = ids_for(boundaries, target.family, target.layers, version)
    if found.ids is None:
        newer = ids_for(boundaries, target.family, target.layers, VERSIONS[-1]).ids
        also = f" SGLang {VERSIONS[-1]} does: {SGLANG_AUX_KEY} = {list(newer)}." if newer else ""
        return {"remedy": f"Not possible by config: {found.reason}.{also}"}
    cure, plus_one = set_config(SGLANG_AUX_KEY, list(found.ids)), " (SGLang adds 1 to an id here: -1 is the embedding)"
    return cure | {"remedy": f"{cure['remedy'][:-1]}: {found.reason}{plus_one * (-1 in found.ids)}."}


def place_of(switch: str, inspection: Inspection) -> str:
    """The field of the draft's config that the engine reads for a switch, as this config spells it; "" for none."""
    draft = inspection.draft
    if switch in NORM_PLACES:
        place = draft.norm_places.get(switch, "")
        return place if place in NORM_PLACES[switch] else switch
    if switch in ("rope_theta", "rope_scaling"):
        if inspection.served.version == "0.5.9" or draft.rope.spelling not in ("rope_parameters", "both"):
            return switch
        return "rope_parameters.rope_theta" if switch == "rope_theta" else "rope_parameters"
    if switch == "head":
        return "tie_word_embeddings" if draft.tied else "draft_vocab_size"
    return ""


def apply_edits(config: Mapping[str, Any], edits: Sequence[Edit]) -> dict[str, Any]:
    """A copy of ``config`` with the edits for it made; those of the launch line are passed over.

    Nested fields are moved to the top level, where SGLang reads them, and fields of other programs are left
    out. Of two edits of one key the first, which is the surer one, has its way.
    """
    wanted: dict[str, Any] = {}
    for edit in edits:
        if edit.where == "draft config":
            wanted.setdefault(edit.key, edit.value)
    after = copy.deepcopy(dict(config))
    inner = after.get("transformer_layer_config")
    nested = isinstance(inner, dict)
    if nested:
        flat = {key: value for key, value in inner.items() if value is not None}
        after = {**after, **flat, "tie_word_embeddings": DraftConfig.from_dict(config).tied}
    if nested or any(key.startswith("eagle_config.eagle_aux") for key in wanted):
        after = {key: value for key, value in after.items() if key not in _FOREIGN}
    for dotted, value in wanted.items():
        *folders, key = dotted.split(".")
        place = after
        for folder in folders:
            if not isinstance(place.get(folder), dict):
                place[folder] = {}
            place = place[folder]
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    return after
