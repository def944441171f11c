"""Rules about the norms that training ran and serving does not, and the reverse."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lib.findings.edits import place_of
from eagle3lib.findings.rule import Facts, Inspection, Rule, set_config

_DRAFT = "sgl-project/sglang srt/models/llama_eagle3.py"
_SCALE = "fc gets states of another scale: a strong loss at every position."


def _residual(i: Inspection) -> Iterator[Facts]:
    if i.trained.switches.norm_before_residual:
        yield {"place": i.draft.norm_places.get("norm_before_residual", "norm_before_residual")}


def _unserved(i: Inspection, name: str, *tensors: str) -> Iterator[Facts]:
    """Training used a norm that the engine will not run."""
    if not getattr(i.trained.switches, name) or getattr(i.served, name):
        return
    place = i.draft.norm_places.get(name, "")
    held = i.checkpoint.find(*tensors) if i.checkpoint and tensors else None
    facts = {
        "said": f"{place} is true" if getattr(i.draft, name) else f"the config does not set {name}",
        "held": f", and the file holds {held.name} {list(held.shape)}" if held else "",
    }
    if i.served.version == "0.5.9":
        yield {**facts, "why": "0.5.9 knows no such flag", "remedy": f"Use SGLang 0.5.23 with {name} at top level."}
    elif i.draft.mla and name == "norm_before_fc":
        remedy = "No config expresses it for Eagle3DeepseekV2ForCausalLM."
        yield {**facts, "why": "the MLA draft has no such norm", "remedy": remedy}
    else:
        yield {**facts, "why": f"it reads the top-level {name}", **set_config(place_of(name, i), True)}


def _two_meanings(i: Inspection) -> list[Facts]:
    return [{}] if i.draft.dialect == "sglang" and i.draft.norm_output and i.served.norm_output else []


RULES = (
    Rule("norm.before_residual", "error", "{place}", _residual,
         evidence="{place} is true: trained with the normed hidden state as residual. SGLang {version} never reads it "
         "and adds fc's raw output.",
         consequence="A strong loss at every position from the first on; the scale differs per token, so no edit of "
         "the weights undoes it.",
         remedy="No flag expresses it: patch LlamaDecoderLayer.forward so that the residual is hidden_norm's output, "
         "serve with vLLM, or train with norm_before_residual: false.",
         source=_DRAFT + " LlamaDecoderLayer.forward"),
    Rule("norm.output", "error", "norm_output", lambda i: _unserved(i, "norm_output"),
         evidence="{said}; SGLang {version} feeds back the state before the norm: {why}.",
         consequence="The first position is unharmed, every later one is off (tail only).",
         source=_DRAFT + " LlamaModel.forward"),
    Rule("norm.output", "note", "norm_output", _two_meanings,
         evidence="norm_output is true. SpecForge before PR 879 meant pre-norm feedback by it, since then and in "
         "SGLang it means post-norm.",
         consequence="If trained before that change, the tail is lost; the first position is the same either way.",
         remedy="Nothing, unless notebook 02 finds norm_output off to be better: then set it to false.",
         source="sgl-project/SpecForge modeling/draft/llama3_eagle.py; PR 879"),
    Rule("norm.before_fc", "error", "norm_before_fc", lambda i: _unserved(i, "norm_before_fc", "input_norm.weight"),
         evidence="{said}{held}; SGLang {version} runs no norm before fc: {why}.",
         consequence=_SCALE,
         source=_DRAFT + " LlamaModel.__init__"),
    Rule("norm.fc", "error", "fc_norm", lambda i: _unserved(i, "fc_norm", "fc_norm.0.weight", "aux_norm_low.weight"),
         evidence="{said}{held}; SGLang {version} runs no norm per state before fc: {why}.",
         consequence=_SCALE,
         source=_DRAFT + " LlamaModel.__init__"),
    Rule("norm.head", "warning", "norm_output", lambda i: [] if i.trained.switches.norm_before_head else [{}],
         evidence="norm_output is false and norm.weight is all ones, as SpecForge leaves it when the head is fed "
         "without a norm.",
         consequence="SGLang {version} always applies the norm: a loss at every position.",
         remedy="No flag expresses it: train with norm_output: true (SpecForge) or later than PR 879.",
         source="sgl-project/SpecForge modeling/draft/llama3_eagle.py compute_logits; " + _DRAFT),
)  # fmt: skip
