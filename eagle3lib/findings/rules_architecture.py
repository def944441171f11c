"""Rules about what a draft is built of: its architecture, its layers, the states its fc takes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from eagle3lib.engine.engine_config import ARCHITECTURES
from eagle3lib.findings.finding import Edit
from eagle3lib.findings.rule import Facts, Inspection, Rule, set_config
from eagle3lib.reading.draft_config import ENGINE_PLACE

_CAPTURE = "sgl-project/sglang srt/models/<target>.py set_eagle3_layers_to_capture"
_DRAFT = "sgl-project/sglang srt/models/llama_eagle3.py"


def _fc_taps(i: Inspection) -> tuple[int, int, str] | None:
    """States that the file's fc takes, their width, and the tensor's name."""
    info = i.checkpoint.find("fc.weight") if i.checkpoint else None
    width = i.target.hidden_size if i.target else i.draft.target_hidden_size or i.draft.hidden_size
    if info is None or len(info.shape) != 2 or not width or info.shape[1] % width:
        return None
    return info.shape[1] // width, width, info.name


def _count(i: Inspection) -> Iterator[Facts]:
    taps, found = _fc_taps(i), i.served.captured
    if not i.draft.use_aux and (taps is None or taps[0] != 1):
        fed = f"fc takes {taps[0]} states" if taps else "an EAGLE-3 fc takes several"
        switch = "eagle_config.use_aux_hidden_state"
        yield {
            "what": f"use_aux_hidden_state is false, so the draft gets the target's normed last state alone; {fed}",
            "subject": switch,
            **set_config(switch, True),
        }
        return
    for problem in found.problems if found else ():
        if problem.topic in ("repeat", "empty"):
            default = f"the default layers of a target of {i.layers} blocks"
            why = default if found.default else f"ids {i.draft.aux_ids}"
            remedy = "List as many different layers as fc takes states, the ones it was trained on."
            yield {"what": f"{why}: {problem.text}", "remedy": remedy}
            return
    sized = i.served.aux_count
    if taps and (taps[0] != sized or found and not found.problems and taps[0] != len(found.boundaries)):
        states = len(found.boundaries) if found else sized
        yield {
            "what": f"{taps[2]} takes {taps[0]} states of width {taps[1]}, SGLang sizes fc for {sized} and captures "
            f"{states}"
        }


def _family(i: Inspection) -> Iterator[Facts]:
    if "family" in i.topics:
        yield {"what": i.served.captured.problems[0].text, "arch": i.target.architecture}


def _unregistered(i: Inspection) -> Iterator[Facts]:
    name, known = i.draft.architecture, ARCHITECTURES[i.served.version]
    if name in known:
        return
    mla = i.draft.get("kv_lora_rank") is not None
    if i.checkpoint is not None:
        mla = i.checkpoint.find("self_attn.kv_b_proj.weight") is not None
    right = "Eagle3DeepseekV2ForCausalLM" if mla else "LlamaForCausalLMEagle3"
    facts = {"name": name or "none", "known": " and ".join(known)}
    if right not in known:
        yield {**facts, "remedy": f"SGLang {i.served.version} has no MLA draft: use SGLang 0.5.23 or a Llama draft."}
        return
    edits = [Edit("draft config", "architectures", [right])]
    if not i.draft.model_type and not mla:
        edits.append(Edit("draft config", "model_type", "llama"))
    flat = " and move the fields of transformer_layer_config to the top level" if i.draft.nested else ""
    yield {**facts, "remedy": f'Set architectures to ["{right}"]{flat} (corrected_config does it).', "edits": edits}


def _unsupported(i: Inspection) -> Iterator[Facts]:
    def some(pattern: str) -> list[str]:
        return [name for name in (i.checkpoint.tensors if i.checkpoint else ()) if re.search(pattern, name)]

    if (found := some(r"self_attn\.[qk]_norm\.")) and not i.draft.mla:
        yield {"what": f"q and k norms ({len(found)} tensors, such as {found[0]})", "subject": "self_attn.q_norm"}
    if found := some(r"self_attn\.(q|k|v|qkv)_proj\.bias$"):
        yield {"what": f"q, k, v biases ({len(found)} tensors, such as {found[0]})", "subject": "attention_bias"}
    if found := some(r"(^|\.)mask_hidden$"):
        yield {"what": f"P-EAGLE's parallel drafting ({found[0]})", "subject": found[0]}
    deeper = some(r"layers\.[1-9]\d*\.input_layernorm\.weight$")
    if any(crash.topic == "layers" for crash in i.served.crashes):
        what = f"{i.draft.layers} draft layers (the engine raises on more than 1)"
        yield {"what": what, "subject": "num_hidden_layers"}
    elif deeper and not some(r"layers\.[1-9]\d*\.hidden_norm\.weight$"):
        what = f"{deeper[0]}: from the second layer on SGLang applies hidden_norm, which stays at ones"
        yield {"what": what, "subject": deeper[0]}
    taps = _fc_taps(i)
    if taps and taps[0] == 1 and taps[1] == i.draft.hidden_size:
        yield {
            "what": f"a single captured state as wide as the embedding ({taps[1]}): SGLang tells by width whether to "
            "apply fc, and skips it",
            "subject": "fc.weight",
        }


RULES = (
    Rule("aux.count", "error", "eagle_aux_hidden_state_layer_ids", _count,
         evidence="{what}.",
         consequence="fc's input has another width than its weight: the server stops at start or at the first forward.",
         remedy=f"Make {ENGINE_PLACE} list exactly the layers that fc was trained on.",
         source=_DRAFT + " LlamaModel.__init__"),
    Rule("arch.unsupported", "error", "target architecture", _family,
         evidence="{what} ({arch}).",
         consequence="The server stops at start.",
         remedy="Use an engine version whose model code for this target has set_eagle3_layers_to_capture.",
         source=_CAPTURE),
    Rule("arch.unregistered", "error", "architectures", _unregistered,
         evidence="architectures names {name}; SGLang {version} serves EAGLE-3 drafts of {known} only.",
         consequence="The server stops at start, or loads a model that is no EAGLE-3 draft.",
         source="sgl-project/sglang srt/models/registry.py; llama_eagle3.py EntryClass"),
    Rule("arch.unsupported", "error", "architecture", _unsupported,
         evidence="The weights were trained with {what}.",
         consequence="SGLang {version} leaves it out without a word: the draft computes something else at "
         "every position.",
         remedy="No config expresses it: use an engine that does, patch the draft model, or train a plain draft.",
         source=_DRAFT + " LlamaDecoderLayer, load_weights"),
)  # fmt: skip
