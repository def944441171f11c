"""Rules about a draft: its architecture, norms, positions, and fields that contradict each other or the target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from eagle3lib.engine.engine_config import ARCHITECTURES
from eagle3lib.findings.catalogue import kind_of_switch, make_finding
from eagle3lib.findings.edits import drop_flag, place_of, set_config, set_flags
from eagle3lib.findings.finding import Edit, Finding, some
from eagle3lib.findings.inspection import Inspection
from eagle3lib.findings.rules_layers import fc_states
from eagle3lib.trainers.trained_wiring import added_yarn


def unregistered(i: Inspection) -> Iterator[Finding]:
    name, known, version = i.draft.architecture, ARCHITECTURES[i.served.version], i.served.version
    if name in known:
        return
    mla = i.draft.get("kv_lora_rank") is not None
    if i.checkpoint is not None:
        mla = i.tensor("self_attn.kv_b_proj.weight") is not None
    right = "Eagle3DeepseekV2ForCausalLM" if mla else "LlamaForCausalLMEagle3"
    cure = {"remedy": f"SGLang {version} has no MLA draft: use SGLang 0.5.23 or a Llama draft."}
    if right in known:
        cure = set_config("architectures", [right])
        if not i.draft.model_type and not mla:
            cure["edits"].append(Edit("draft config", "model_type", "llama"))
        if i.draft.nested:
            cure["remedy"] += " Move the fields of transformer_layer_config to the top level (corrected_config does)."
    what = f"architectures names {name or 'none'}; SGLang {version} serves EAGLE-3 drafts as {' or '.join(known)}."
    yield make_finding("arch.unregistered", "architectures", what, **cure)


#: Trained features that SGLang leaves out: tensors that show them, subject (else the tensor), and what they are.
_LEFT_OUT = (
    (r"self_attn\.[qk]_norm\.", "self_attn.q_norm", "q and k norms"),
    (r"self_attn\.(q|k|v|qkv)_proj\.bias$", "attention_bias", "q, k, v biases"),
    (r"(^|\.)mask_hidden$", "", "P-EAGLE's parallel drafting"),
)


def unsupported(i: Inspection) -> Iterator[Finding]:
    def held(pattern: str) -> list[str]:
        return [name for name in i.tensors if re.search(pattern, name)]

    found = partial(make_finding, "arch.unsupported")
    for pattern, subject, feature in _LEFT_OUT:
        names = held(pattern)
        if names and not (i.draft.mla and "norm" in subject):  # MLA has such norms of its own
            yield found(subject or names[0], f"The weights were trained with {feature} ({some(names, 1)}).")
    deeper = held(r"layers\.[1-9]\d*\.input_layernorm\.weight$")
    if i.refusals("layers"):
        yield found("num_hidden_layers", f"Trained with {i.draft.layers} layers: the engine raises on more than 1.")
    elif deeper and not held(r"layers\.[1-9]\d*\.hidden_norm\.weight$"):
        what = f"{deeper[0]}: from the second layer on SGLang applies hidden_norm, which stays at ones."
        yield found(deeper[0], what)
    taken = fc_states(i)
    if taken and taken[:2] == (1, i.draft.hidden_size):
        what = f"fc takes one state as wide as the embedding ({taken[1]}): by that width SGLang decides to skip fc."
        yield found("fc.weight", what)


def activation(i: Inspection) -> Iterator[Finding]:
    """Another activation than silu: the engine stops at start, and notebook 02 computes silu."""
    layer = i.draft.raw.get("transformer_layer_config")
    found = i.draft.raw.get("hidden_act", layer.get("hidden_act") if isinstance(layer, dict) else None)
    if found not in (None, "silu"):
        what = f"hidden_act is {found!r}; SGLang's MLP raises on anything but silu."
        yield make_finding("arch.unsupported", "hidden_act", what, case="activation")


def normed_residual(i: Inspection) -> Iterator[Finding]:
    if i.trained.switches.norm_before_residual:
        place = i.draft.norm_places.get("norm_before_residual", "norm_before_residual")
        never = f"SGLang {i.served.version} never reads it and adds fc's raw output"
        what = f"{place} is true: the residual was normed in training. {never}."
        yield make_finding("norm.before_residual", place, what)


#: Norms that training may have run and the engine not: switch -> what does not happen, tensors that show it.
_NORMS = {
    "norm_output": ("feeds back the state before the norm", ()),
    "norm_before_fc": ("runs no norm before fc", ("input_norm.weight",)),
    "fc_norm": ("runs no norm per state before fc", ("fc_norm.0.weight", "aux_norm_low.weight")),
}


def unserved_norms(i: Inspection) -> Iterator[Finding]:
    for name, (undone, tensors) in _NORMS.items():
        if not getattr(i.trained.switches, name) or getattr(i.served, name):
            continue
        held = i.tensor(*tensors) if tensors else None
        shown = f"the config does not set {name}"
        if getattr(i.draft, name):
            shown = f"{i.draft.norm_places.get(name, '')} is true"
        if held:
            shown += f", and the file holds {held.name} {list(held.shape)}"
        if i.served.version == "0.5.9":
            cure, why = {"remedy": f"Use SGLang 0.5.23 with {name} at top level."}, "0.5.9 knows no such flag"
        elif i.draft.mla and name == "norm_before_fc":
            cure = {"remedy": "No config expresses it for Eagle3DeepseekV2ForCausalLM."}
            why = "the MLA draft has no such norm"
        else:
            cure, why = set_config(place_of(name, i), True), f"it reads the top-level {name}"
        what = f"{shown}; SGLang {i.served.version} {undone}: {why}."
        yield make_finding(kind_of_switch(name), name, what, **cure)


def norm_meanings(i: Inspection) -> Iterator[Finding]:
    if i.draft.dialect == "sglang" and i.draft.norm_output and i.served.norm_output:
        what = "norm_output is true: pre-norm feedback in SpecForge before PR 879, post-norm since then and in SGLang."
        yield make_finding("norm.output", "norm_output", what, case="two meanings")
    if not i.trained.switches.norm_before_head:
        what = "norm_output is false and norm.weight all ones, as SpecForge leaves it where the head is fed without it."
        yield make_finding("norm.head", "norm_output", what)


def rope_theta(i: Inspection) -> Iterator[Finding]:
    trained, served, rope = i.trained.switches.rope_theta, i.served.rope.theta, i.draft.rope
    if trained != served:
        unread = f"SGLang {i.served.version} does not read rope_parameters"
        why = next((note for note in i.trained.notes if "rope_theta" in note), unread)
        cure = set_config(place_of("rope_theta", i), int(trained) if trained == int(trained) else trained)
        what = f"Trained with base {trained:g}, served with {served:g}: {why}."
        yield make_finding("rope.theta", place_of("rope_theta", i), what, **cure)
    elif rope.spelling == "both" and i.draft.get("rope_theta") is not None and rope.theta != rope.legacy_theta:
        where = "rope_theta and rope_parameters.rope_theta disagree"
        what = f"Trained with base {rope.legacy_theta:g} or {rope.theta:g}, served with {served:g}: {where}."
        yield make_finding("rope.theta", "rope_theta", what, case="two values")


def rope_scaling(i: Inspection) -> Iterator[Finding]:
    rope, target = i.draft.rope, i.target.rope if i.target else None
    found = partial(make_finding, "rope.scaling", "rope_scaling")
    if added_yarn(i.draft):
        yield found(f"YaRN x{(rope.scaling or {}).get('factor')} in the config of a ModelOpt export.", case="export")
    elif rope.scaling and not i.served.rope.scaling:
        what = f"{rope.kind} scaling is in rope_parameters, which SGLang {i.served.version} does not read."
        yield found(what, case="unread", edits=[Edit("draft config", "rope_scaling", dict(rope.scaling))])
    elif target is None:
        return
    elif target.scaling and not rope.scaling and i.draft.dialect == "speculators":
        positions, original = i.draft.max_positions or 0, target.original_positions or i.target.max_positions or 0
        what = (
            f"The target scales its positions ({target.kind}), speculators copies that, and this config has none "
            f"(max_position_embeddings {positions:,}, the target's before scaling {original:,})."
        )
        yield found(what, case="dropped", severity="warning" if positions > original else "note")
    elif rope.scaling and dict(rope.scaling) != dict(target.scaling or {}) and rope.kind != target.kind:
        how = f"by {target.kind}" if target.scaling else "not at all"
        yield found(f"The draft scales its positions ({rope.kind}), the target {how}.", case="another")


def window(i: Inspection) -> Iterator[Finding]:
    trained, served = i.trained.switches.window, i.served.window
    if trained == served or trained and served and abs(trained - served) <= 1:
        return
    limit = min(w for w in (trained, served) if w)
    short = 0 < i.longest_prompt <= limit or i.served.context is not None and i.served.context <= limit
    seen, kept = (f"the last {w} tokens" if w is not None else "the whole context" for w in (trained, served))
    flag, cure = "--speculative-draft-window-size", {"remedy": "No flag expresses it here."}
    if trained is None:
        cure = drop_flag(flag)
    elif i.served.version != "0.5.9" and not i.draft.mla:
        cure = set_flags({flag: trained - 1})
        cure["remedy"] += f" SGLang counts the keys before the current one, the trained {trained} include it."
    what = f"Trained to see {seen}, served with {kept}: SGLang ignores sliding_window and layer_types."
    severity, effect = "note" if short else "warning", f"The same up to {limit} tokens, a step down beyond."
    yield make_finding("attention.window", "sliding_window", what, severity=severity, consequence=effect, **cure)


def contradictions(i: Inspection) -> Iterator[Finding]:
    d, found = i.draft, partial(make_finding, "config.out_of_range")
    if d.draft_vocab_size and d.vocab_size and d.draft_vocab_size > d.vocab_size:
        what = f"draft_vocab_size {d.draft_vocab_size:,} exceeds vocab_size {d.vocab_size:,}."
        yield found("draft_vocab_size", what, severity="error")
    if d.heads and d.kv_heads and d.heads % d.kv_heads and not d.mla:
        what = f"{d.heads} attention heads do not divide among {d.kv_heads} key heads."
        yield found("num_key_value_heads", what, severity="error")
    if d.heads and d.hidden_size and d.hidden_size % d.heads and d.get("head_dim") is None and not d.mla:
        what = f"hidden_size {d.hidden_size} does not divide among {d.heads} heads, and head_dim is not given."
        yield found("num_attention_heads", what, severity="error")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = d.get(key)
        for token in ids if isinstance(ids, list) else [ids]:
            if isinstance(token, int) and d.vocab_size and token >= d.vocab_size:
                yield found(key, f"{key} {token:,} lies beyond vocab_size {d.vocab_size:,}.")
    held = _layers_held(i)
    if held and d.layers > held:
        what, cure = f"num_hidden_layers is {d.layers}, the weights hold {held}.", set_config("num_hidden_layers", held)
        yield found("num_hidden_layers", what, severity="error", **cure)
    for key in d.duplicates:
        what = f"the key {key} is there twice; its last value is taken."
        yield make_finding("config.out_of_range.duplicate_key", key, what)
    for refusal in i.refusals("config"):
        key = refusal.split()[0]
        yield found(key, f"{refusal}.", severity="error", **_config_cure(i, key))


def _layers_held(i: Inspection) -> int:
    numbers = [int(m[1]) for n in i.tensors if (m := re.search(r"(?:^|\.)layers\.(\d{1,4})\.", n))]
    return max(numbers, default=-1) + 1 or int(any("midlayer." in n for n in i.tensors))


def _config_cure(i: Inspection, key: str) -> dict[str, Any]:
    d = i.draft
    if key == "draft_vocab_size":
        value = d.draft_vocab_size or i.weights.head_rows or d.vocab_size
        return set_config(key, value) if value else {"remedy": "Add draft_vocab_size: the rows of lm_head.weight."}
    if key == "target_hidden_size":
        width = i.target.hidden_size if i.target else None
        return set_config(key, width if width and width != d.hidden_size else None)
    return {"remedy": "Give it the value of the trained draft; SGLang serves no MLA draft trained without one."}


def other_target(i: Inspection) -> Iterator[Finding]:
    d, t, found = i.draft, i.target, partial(make_finding, "target.mismatch")
    if t is None:
        return
    if d.vocab_size and d.vocab_size != t.vocab_size:
        yield found("vocab_size", f"the draft's vocab_size is {d.vocab_size:,}, the target's {t.vocab_size:,}.")
    if d.verifier_architecture and t.architecture and d.verifier_architecture != t.architecture:
        what = f"trained for {d.verifier_architecture} ({d.verifier or 'no name'}), served beside {t.architecture}."
        yield found("speculators_config.verifier", what)
    width = d.target_hidden_size or d.hidden_size
    shown = any(name.endswith("fc.weight") for name, _, _ in i.loading.misshapen)
    if width and width != t.hidden_size and not shown:
        fits = d.target_hidden_size is None and i.checkpoint is None and d.vocab_size == t.vocab_size
        remedy = f"If trained for this target, set target_hidden_size to {t.hidden_size}."
        edits = [Edit("draft config", "target_hidden_size", t.hidden_size)] if fits else []
        what = f"fc is sized for states of width {width}, the target's are {t.hidden_size} wide."
        yield found("target_hidden_size", what, severity="error", remedy=remedy, edits=edits)


RULES = (
    unregistered, unsupported, activation, normed_residual, unserved_norms, norm_meanings, rope_theta, rope_scaling,
    window, contradictions, other_target,
)  # fmt: skip
