"""Rules about a draft: its architecture, norms, positions, and fields that contradict each other or the target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from eagle3lib.engine.engine_config import ARCHITECTURES
from eagle3lib.findings.catalogue import make_finding
from eagle3lib.findings.edits import drop_flag, place_of, set_config
from eagle3lib.findings.finding import Edit, Finding
from eagle3lib.findings.inspection import Inspection
from eagle3lib.findings.rules_layers import fc_states
from eagle3lib.trainers.trained_wiring import added_yarn


def unregistered(i: Inspection) -> Iterator[Finding]:
    name, known, version = i.draft.architecture, ARCHITECTURES[i.served.version], i.served.version
    if name in known:
        return
    mla = i.draft.get("kv_lora_rank") is not None
    if i.checkpoint is not None:
        mla = i.checkpoint.find("self_attn.kv_b_proj.weight") is not None
    right, edits = "Eagle3DeepseekV2ForCausalLM" if mla else "LlamaForCausalLMEagle3", []
    if right not in known:
        remedy = f"SGLang {version} has no MLA draft: use SGLang 0.5.23 or a Llama draft."
    else:
        edits = [Edit("draft config", "architectures", [right])]
        if not i.draft.model_type and not mla:
            edits.append(Edit("draft config", "model_type", "llama"))
        flat = " and move the fields of transformer_layer_config to the top level" if i.draft.nested else ""
        remedy = f'Set architectures to ["{right}"]{flat} (corrected_config does it).'
    what = (
        f"architectures names {name or 'none'}; SGLang {version} serves EAGLE-3 drafts of {' and '.join(known)} only."
    )
    yield make_finding("arch.unregistered", "architectures", what, remedy=remedy, edits=edits)


def unsupported(i: Inspection) -> Iterator[Finding]:
    def some(pattern: str) -> list[str]:
        return [name for name in (i.checkpoint.tensors if i.checkpoint else ()) if re.search(pattern, name)]

    features = []  # subject, what was trained
    if (names := some(r"self_attn\.[qk]_norm\.")) and not i.draft.mla:
        features.append(("self_attn.q_norm", f"q and k norms ({len(names)} tensors, such as {names[0]})"))
    if names := some(r"self_attn\.(q|k|v|qkv)_proj\.bias$"):
        features.append(("attention_bias", f"q, k, v biases ({len(names)} tensors, such as {names[0]})"))
    if names := some(r"(^|\.)mask_hidden$"):
        features.append((names[0], f"P-EAGLE's parallel drafting ({names[0]})"))
    deeper = some(r"layers\.[1-9]\d*\.input_layernorm\.weight$")
    if any(crash.topic == "layers" for crash in i.served.crashes):
        features.append(("num_hidden_layers", f"{i.draft.layers} draft layers (the engine raises on more than 1)"))
    elif deeper and not some(r"layers\.[1-9]\d*\.hidden_norm\.weight$"):
        what = f"{deeper[0]}: from the second layer on SGLang applies hidden_norm, which stays at ones"
        features.append((deeper[0], what))
    taken = fc_states(i)
    if taken and taken[0] == 1 and taken[1] == i.draft.hidden_size:
        what = (
            f"a single captured state as wide as the embedding ({taken[1]}): SGLang tells by width whether to apply "
            "fc, and skips it"
        )
        features.append(("fc.weight", what))
    for subject, what in features:
        yield make_finding("arch.unsupported", subject, f"The weights were trained with {what}.")


def normed_residual(i: Inspection) -> Iterator[Finding]:
    if i.trained.switches.norm_before_residual:
        place = i.draft.norm_places.get("norm_before_residual", "norm_before_residual")
        what = (
            f"{place} is true: trained with the normed hidden state as residual. SGLang {i.served.version} never reads "
            "it and adds fc's raw output."
        )
        yield make_finding("norm.before_residual", place, what)


#: Norms that training may have run and the engine not: switch -> kind, what does not happen, tensors that show it.
_NORMS = {
    "norm_output": ("norm.output", "feeds back the state before the norm", ()),
    "norm_before_fc": ("norm.before_fc", "runs no norm before fc", ("input_norm.weight",)),
    "fc_norm": ("norm.fc", "runs no norm per state before fc", ("fc_norm.0.weight", "aux_norm_low.weight")),
}


def unserved_norms(i: Inspection) -> Iterator[Finding]:
    for name, (kind, undone, tensors) in _NORMS.items():
        if not getattr(i.trained.switches, name) or getattr(i.served, name):
            continue
        held = i.checkpoint.find(*tensors) if i.checkpoint and tensors else None
        said = f"the config does not set {name}"
        if getattr(i.draft, name):
            said = f"{i.draft.norm_places.get(name, '')} is true"
        if held:
            said += f", and the file holds {held.name} {list(held.shape)}"
        if i.served.version == "0.5.9":
            cure, why = {"remedy": f"Use SGLang 0.5.23 with {name} at top level."}, "0.5.9 knows no such flag"
        elif i.draft.mla and name == "norm_before_fc":
            cure = {"remedy": "No config expresses it for Eagle3DeepseekV2ForCausalLM."}
            why = "the MLA draft has no such norm"
        else:
            cure, why = set_config(place_of(name, i), True), f"it reads the top-level {name}"
        yield make_finding(kind, name, f"{said}; SGLang {i.served.version} {undone}: {why}.", **cure)


def norm_meanings(i: Inspection) -> Iterator[Finding]:
    if i.draft.dialect == "sglang" and i.draft.norm_output and i.served.norm_output:
        what = (
            "norm_output is true. SpecForge before PR 879 meant pre-norm feedback by it, since then and in SGLang it "
            "means post-norm."
        )
        yield make_finding("norm.output", "norm_output", what, case="two meanings")
    if not i.trained.switches.norm_before_head:
        what = (
            "norm_output is false and norm.weight is all ones, as SpecForge leaves it when the head is fed without a "
            "norm."
        )
        yield make_finding("norm.head", "norm_output", what)


def rope_theta(i: Inspection) -> Iterator[Finding]:
    trained, served, rope, version = i.trained.switches.rope_theta, i.served.rope.theta, i.draft.rope, i.served.version
    if trained != served:
        key, unread = place_of("rope_theta", i), f"SGLang {version} does not read rope_parameters"
        why = next((note for note in i.trained.notes if "rope_theta" in note), unread)
        edit = Edit("draft config", key, int(trained) if trained == int(trained) else trained)
        what = f"Trained with base {trained:g}, served with {served:g}: {why}."
        yield make_finding("rope.theta", key, what, remedy=f"Set {key} to {trained:g}.", edits=[edit])
    elif rope.spelling == "both" and i.draft.get("rope_theta") is not None and rope.theta != rope.legacy_theta:
        what = (
            f"Trained with base {rope.legacy_theta:g} or {rope.theta:g}, served with {served:g}: rope_theta and "
            "rope_parameters.rope_theta disagree."
        )
        yield make_finding("rope.theta", "rope_theta", what, remedy="Make both the value used in training.")


def rope_scaling(i: Inspection) -> Iterator[Finding]:
    rope, target = i.draft.rope, i.target.rope if i.target else None
    severity, edits = "note", []
    if added_yarn(i.draft):
        what = (
            f"YaRN x{(rope.scaling or {}).get('factor')} stands in the config; ModelOpt trains without scaling and "
            "adds it on purpose when it exports"
        )
        remedy = "Nothing to do; without it set rope_scaling to null."
    elif rope.scaling and not i.served.rope.scaling:
        severity, edits = "warning", [Edit("draft config", "rope_scaling", dict(rope.scaling))]
        what = f"the {rope.kind} scaling stands in rope_parameters, which SGLang {i.served.version} does not read"
        remedy = "Write it as rope_scaling too."
    elif target is None:
        return
    elif target.scaling and not rope.scaling and i.draft.dialect == "speculators":
        positions, original = i.draft.max_positions or 0, target.original_positions or i.target.max_positions or 0
        severity = "warning" if positions > original else "note"
        what = (
            f"the target scales its positions ({target.kind}), speculators copies that from it, and this config has "
            f"none (max_position_embeddings {positions:,}, the target's before scaling {original:,})"
        )
        remedy = (
            "If it was trained with the target's scaling (converters before speculators PR 574 drop it), copy the "
            "target's rope_scaling."
        )
    elif rope.scaling and dict(rope.scaling) != dict(target.scaling or {}) and rope.kind != target.kind:
        how = f"by {target.kind}" if target.scaling else "not at all"
        what, remedy = f"the draft scales its positions ({rope.kind}), the target {how}", "Right if it was trained so."
    else:
        return
    yield make_finding("rope.scaling", "rope_scaling", f"Position scaling: {what}.", severity=severity, remedy=remedy,
                edits=edits)  # fmt: skip


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
        remedy = (
            f"Add {flag} {trained - 1} (SGLang counts the keys before the current one, the trained window of {trained} "
            "counts it too)."
        )
        cure = {"remedy": remedy, "edits": [Edit("launch", flag, trained - 1)]}
    yield make_finding(
        "attention.window",
        "sliding_window",
        f"Trained to see {seen}, served with {kept}: SGLang ignores sliding_window and layer_types.",
        severity="note" if short else "warning",
        consequence=f"The same up to {limit} tokens, a step down beyond.",
        **cure,
    )


def contradictions(i: Inspection) -> Iterator[Finding]:
    d, kind = i.draft, "config.out_of_range"
    if d.draft_vocab_size and d.vocab_size and d.draft_vocab_size > d.vocab_size:
        what = f"draft_vocab_size {d.draft_vocab_size:,} exceeds vocab_size {d.vocab_size:,}."
        yield make_finding(kind, "draft_vocab_size", what, severity="error")
    if d.heads and d.kv_heads and d.heads % d.kv_heads and not d.mla:
        what = f"{d.heads} attention heads do not divide among {d.kv_heads} key heads."
        yield make_finding(kind, "num_key_value_heads", what, severity="error")
    if d.heads and d.hidden_size and d.hidden_size % d.heads and d.get("head_dim") is None and not d.mla:
        what = f"hidden_size {d.hidden_size} does not divide among {d.heads} heads, and head_dim is not given."
        yield make_finding(kind, "num_attention_heads", what, severity="error")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = d.get(key)
        for token in ids if isinstance(ids, list) else [ids]:
            if isinstance(token, int) and d.vocab_size and token >= d.vocab_size:
                yield make_finding(kind, key, f"{key} {token:,} lies beyond vocab_size {d.vocab_size:,}.")
    held = _layers_held(i)
    if held and d.layers > held:
        what, cure = f"num_hidden_layers is {d.layers}, the weights hold {held}.", set_config("num_hidden_layers", held)
        yield make_finding(kind, "num_hidden_layers", what, severity="error", **cure)
    for key in d.duplicates:
        yield make_finding(f"{kind}.duplicate_key", key, f"the key {key} stands twice; its last value is taken.")
    for crash in i.served.crashes:
        if crash.topic == "config":
            key = crash.text.split()[0]
            yield make_finding(kind, key, f"{crash.text}.", severity="error", **_config_cure(i, key))


def _layers_held(i: Inspection) -> int:
    names = i.checkpoint.tensors if i.checkpoint else ()
    numbers = [int(m[1]) for n in names if (m := re.search(r"(?:^|\.)layers\.(\d{1,4})\.", n))]
    return max(numbers, default=-1) + 1 or int(any("midlayer." in n for n in names))


def _config_cure(i: Inspection, key: str) -> dict[str, Any]:
    d = i.draft
    if key == "draft_vocab_size":
        value = d.draft_vocab_size or i.weights.head_rows or d.vocab_size
        if not value:
            return {"remedy": "Add draft_vocab_size: the rows of lm_head.weight."}
        return {**set_config(key, value), "remedy": f"Add draft_vocab_size: {value}."}
    if key == "target_hidden_size":
        width = i.target.hidden_size if i.target else None
        if width and width != d.hidden_size:
            return set_config(key, width)
        return {**set_config(key, None), "remedy": "Remove target_hidden_size."}
    return {"remedy": "Give it the value of the trained draft; SGLang serves no MLA draft trained without one."}


def other_target(i: Inspection) -> Iterator[Finding]:
    d, t, kind = i.draft, i.target, "target.mismatch"
    if t is None:
        return
    if d.vocab_size and d.vocab_size != t.vocab_size:
        what = f"the draft's vocab_size is {d.vocab_size:,}, the target's {t.vocab_size:,}."
        yield make_finding(kind, "vocab_size", what)
    if d.verifier_architecture and t.architecture and d.verifier_architecture != t.architecture:
        what = f"trained for {d.verifier_architecture} ({d.verifier or 'no name'}), served beside {t.architecture}."
        yield make_finding(kind, "speculators_config.verifier", what)
    width = d.target_hidden_size or d.hidden_size
    shown = i.served.loading and any(n.endswith("fc.weight") for n, _, _ in i.served.loading.misshapen)
    if width and width != t.hidden_size and not shown:
        fits = d.target_hidden_size is None and i.checkpoint is None and d.vocab_size == t.vocab_size
        what = f"fc is sized for states of width {width}, the target's are {t.hidden_size} wide."
        remedy = f"If trained for this target, set target_hidden_size to {t.hidden_size}."
        edits = [Edit("draft config", "target_hidden_size", t.hidden_size)] if fits else []
        yield make_finding(kind, "target_hidden_size", what, severity="error", remedy=remedy, edits=edits)


RULES = (
    unregistered, unsupported, normed_residual, unserved_norms, norm_meanings, rope_theta, rope_scaling, window,
    contradictions, other_target,
)  # fmt: skip
