"""The wiring that a draft was trained with, as far as config and weights show it.

Sources: sgl-project/SpecForge algorithms/model_providers.py ``resolve_eagle_capture_layers``;
vllm-project/speculators models/utils.py ``resolve_target_layer_ids``, models/eagle3/config.py;
NVIDIA/Model-Optimizer plugins/hf_eagle.py ``_collect_aux_hidden_states_forward_hook``;
Tencent/AngelSlim target_model_wrapper.py ``_extract_auxiliary_hidden_states`` and ``_init_rope``;
SafeAILab/EAGLE traineagle3/modeling_llama_kv.py and cnets.py ``_init_rope``.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lib.maths.wiring import Wiring, default_boundaries
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.draft_config import SGLANG_AUX_KEY, DraftConfig
from eagle3lib.reading.rope import DEFAULT_THETA
from eagle3lib.reading.target_config import TargetConfig

Boundaries = tuple[int, ...]


@dataclass(frozen=True)
class Trained:
    """``boundaries`` in the order of ``fc``'s inputs, None where they are not certain; then ``candidates``
    are the readings that fit, and ``reason`` why. ``switches`` hold what is known apart from them;
    ``wiring`` is both together, None without boundaries."""

    boundaries: Boundaries | None
    candidates: tuple[Boundaries, ...]
    reason: str
    switches: Wiring
    notes: tuple[str, ...] = ()

    @property
    def wiring(self) -> Wiring | None:
        return None if self.boundaries is None else self.switches.replace(boundaries=self.boundaries)


def trained_wiring(draft: DraftConfig, target: TargetConfig | None, checkpoint: Checkpoint | None) -> Trained:
    """The wiring a draft was trained with; without a target, boundaries are known only if ids name them."""
    candidates, reason = _boundaries(draft, target)
    agreed = candidates[0] if len(candidates) == 1 else None
    find = checkpoint.find if checkpoint else lambda *endings: None
    theta, scaling, notes = _rope(draft)
    unnormed = draft.dialect == "sglang" and draft.norm_output is False and _untrained_norm(checkpoint)
    if unnormed:
        notes.append("norm_output is false and norm.weight is all ones: SpecForge fed the head without a norm")
    if draft.dialect == "sglang" and draft.norm_output:
        note = "norm_output: true meant pre-norm feedback in SpecForge before PR 879, post-norm after it"
        notes.append(f"{note}; post-norm is taken")
    without_own = "tied" if draft.tied else "target" if draft.draft_vocab_size is None else "own"
    switches = Wiring(
        boundaries=agreed or (),
        norm_before_fc=bool(draft.norm_before_fc or find("input_norm.weight")),
        fc_norm=bool(draft.fc_norm or find("fc_norm.0.weight", "aux_norm_low.weight")),
        norm_before_residual=bool(draft.norm_before_residual),
        norm_output=bool(draft.norm_output),
        norm_before_head=not unnormed,
        rope_theta=theta,
        rope_scaling=scaling,
        window=draft.window if draft.dialect in ("speculators", "vllm", "sglang") else None,
        head="own" if find("lm_head.weight") else without_own,
        embedding="target" if draft.shares_embedding else "own",
    )
    return Trained(agreed, candidates, reason, switches, tuple(notes))


def _boundaries(draft: DraftConfig, target: TargetConfig | None) -> tuple[tuple[Boundaries, ...], str]:
    """The readings of a draft's ids that fit its trainer's numbering, and why."""
    ids, n, who = draft.aux_ids, target.layers if target else None, draft.dialect
    if ids is None or who == "eagle":
        if n is None:
            return (), "no ids in the config, and no target to take the default layers from"
        return (default_boundaries(n),), f"{who}: no ids, so the default layers of a target of {n} blocks"
    in_order, same = tuple(i + 1 for i in ids), tuple(sorted(ids))
    if target is None:
        if who == "sglang":
            return (), "no target: its family is unknown"
        return (in_order if who in ("angelslim", "modelopt") else same,), "ids read without a target"
    readings, reason = _readings(draft, ids, target)
    return tuple(dict.fromkeys(b for b in readings if b and all(0 <= k <= target.layers for k in b))), reason


def _readings(draft: DraftConfig, ids: Boundaries, target: TargetConfig) -> tuple[tuple[Boundaries, ...], str]:
    """What sorted ids may mean to the trainer, the likelier reading first: the boundary id + 1, or id itself."""
    plus, same = tuple(sorted(i + 1 for i in ids)), tuple(sorted(ids))
    default, who = default_boundaries(target.layers), draft.dialect
    k_form = same == default and len(set(same)) == len(same)
    if who == "angelslim":
        return (tuple(i + 1 for i in ids),), "AngelSlim: id k is hidden_states[k + 1], in config order"
    if who == "speculators" and draft.aux_place == SGLANG_AUX_KEY and ids != default:
        # written into eagle_config by hand: as boundaries, or converted to SGLang's numbering
        why = "speculators ids are boundaries, but these are in the field from which SGLang reads id + 1"
        return (plus,) if plus == default else (plus, same), why
    if who in ("speculators", "vllm"):
        return (same,), f"{who} ids are boundaries (k form), gathered ascending"
    if who == "modelopt" and k_form:
        why = "the ids are the default layers in the latter form"
        return (plus, same), f"ModelOpt's hooks mean id + 1, its vLLM dump means the id itself, and {why}"
    if who == "modelopt":
        return (plus,), "ModelOpt: forward hooks on block ids (id + 1)"
    if target.family in ("deepseek_v2", "kimi_k25", "glm4_moe_lite") and ids[:1] != (1,):
        return (same, plus), "on this family SGLang took ids + 1 until PR 25454 and takes them as they are since"
    if target.family == "gpt_oss" and ids and max(ids) == target.layers:
        return (same,), "gpt-oss: a list that holds n is taken as it is"
    if k_form:
        why = "SGLang's ids mean id + 1, but these are the default layers as speculators and vLLM write them"
        return (plus, same), why
    if 0 in ids:
        why = "id 0 is boundary 1 in SGLang's numbering and the embedding in that of speculators and vLLM"
        return (plus, same), why
    return (plus,), "captured through SGLang's own numbering (id + 1) in training"


def _rope(draft: DraftConfig) -> tuple[float, object, list[str]]:
    theta, scaling = draft.rope.theta, draft.rope.scaling
    if draft.dialect in ("eagle", "angelslim") and scaling is None and theta != DEFAULT_THETA:
        trainer = "AngelSlim" if draft.dialect == "angelslim" else "EAGLE"
        note = f"{trainer}'s trainer ignores rope_theta {theta:g} when rope_scaling is null: it trains with 10000"
        return DEFAULT_THETA, None, [note]
    if added_yarn(draft):
        return theta, None, ["ModelOpt trains without scaling and adds YaRN when it exports"]
    return theta, scaling, []


def added_yarn(draft: DraftConfig) -> bool:
    """True for the YaRN that ModelOpt's export adds (modelopt/torch/export/plugins/hf_spec_export.py)."""
    return draft.rope.kind == "yarn" and (
        draft.dialect == "modelopt"
        or (draft.rope.scaling or {}).get("factor") == 32
        and draft.rope.original_positions == 2048
    )


def _untrained_norm(checkpoint: Checkpoint | None) -> bool:
    """True when the final norm's weight is still all ones."""
    info = checkpoint.find("norm.weight") if checkpoint else None
    return info is not None and bool((checkpoint.sample(info.name, 1 << 20).float() == 1).all())
