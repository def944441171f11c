"""Rules about fields that contradict each other or the target."""

from __future__ import annotations

import re
from collections.abc import Iterator

from eagle3lib.findings.finding import Edit
from eagle3lib.findings.rule import Facts, Inspection, Rule, set_config


def _geometry(i: Inspection) -> Iterator[Facts]:
    d = i.draft
    if d.draft_vocab_size and d.vocab_size and d.draft_vocab_size > d.vocab_size:
        text = f"draft_vocab_size {d.draft_vocab_size:,} exceeds vocab_size {d.vocab_size:,}"
        yield {"subject": "draft_vocab_size", "severity": "error", "text": text}
    if d.heads and d.kv_heads and d.heads % d.kv_heads and not d.mla:
        text = f"{d.heads} attention heads do not divide among {d.kv_heads} key heads"
        yield {"subject": "num_key_value_heads", "severity": "error", "text": text}
    if d.heads and d.hidden_size and d.hidden_size % d.heads and d.get("head_dim") is None and not d.mla:
        text = f"hidden_size {d.hidden_size} does not divide among {d.heads} heads, and head_dim is not given"
        yield {"subject": "num_attention_heads", "severity": "error", "text": text}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = d.get(key)
        for token in ids if isinstance(ids, list) else [ids]:
            if isinstance(token, int) and d.vocab_size and token >= d.vocab_size:
                yield {"subject": key, "text": f"{key} {token:,} lies beyond vocab_size {d.vocab_size:,}"}
    held = _layers_held(i)
    if held and d.layers > held:
        text = f"num_hidden_layers is {d.layers}, the weights hold {held}"
        cure = set_config("num_hidden_layers", held)
        yield {"subject": "num_hidden_layers", "severity": "error", "text": text, **cure}
    for key in d.duplicates:
        yield {"subject": key, "kind": "duplicate_key", "text": f"the key {key} stands twice; its last value is taken"}
    for crash in i.served.crashes:
        if crash.topic == "config":
            key = crash.text.split()[0]
            yield {"subject": key, "severity": "error", "text": crash.text, **_config_cure(i, key)}


def _layers_held(i: Inspection) -> int:
    names = i.checkpoint.tensors if i.checkpoint else ()
    numbers = [int(m[1]) for n in names if (m := re.search(r"(?:^|\.)layers\.(\d{1,4})\.", n))]
    return max(numbers, default=-1) + 1 or int(any("midlayer." in n for n in names))


def _config_cure(i: Inspection, key: str) -> Facts:
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


def _target(i: Inspection) -> Iterator[Facts]:
    d, t = i.draft, i.target
    if t is None:
        return
    if d.vocab_size and d.vocab_size != t.vocab_size:
        text = f"the draft's vocab_size is {d.vocab_size:,}, the target's {t.vocab_size:,}"
        yield {"subject": "vocab_size", "text": text}
    if d.verifier_architecture and t.architecture and d.verifier_architecture != t.architecture:
        text = f"trained for {d.verifier_architecture} ({d.verifier or 'no name'}), served beside {t.architecture}"
        yield {"subject": "speculators_config.verifier", "text": text}
    width = d.target_hidden_size or d.hidden_size
    shown = i.served.loading and any(n.endswith("fc.weight") for n, _, _ in i.served.loading.misshapen)
    if width and width != t.hidden_size and not shown:
        fits = d.target_hidden_size is None and i.checkpoint is None and d.vocab_size == t.vocab_size
        yield {
            "subject": "target_hidden_size",
            "severity": "error",
            "text": f"fc is sized for states of width {width}, the target's are {t.hidden_size} wide",
            "remedy": f"If trained for this target, set target_hidden_size to {t.hidden_size}.",
            "edits": [Edit("draft config", "target_hidden_size", t.hidden_size)] if fits else [],
        }


RULES = (
    Rule("config.out_of_range", "warning", "config", _geometry,
         evidence="{text}.",
         consequence="A config that contradicts itself is read differently by different programs, or stops the server.",
         remedy="Correct the value.",
         source="sgl-project/sglang srt/models/llama_eagle3.py; transformers LlamaConfig"),
    Rule("target.mismatch", "warning", "target", _target,
         evidence="{text}.",
         consequence="The draft was trained on another model's states: expect a loss at every position, or a crash by "
         "width.",
         remedy="Serve it beside the target it was trained for.",
         source="sgl-project/sglang srt/speculative/eagle_utils.py get_draft_input_from_target_hidden_dim"),
)  # fmt: skip
