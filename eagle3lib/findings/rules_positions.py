"""Rules about rotary embedding, attention windows and context lengths."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lib.engine.engine_config import CONTEXT_OVERRIDE, draft_context
from eagle3lib.engine.speculation import is_command
from eagle3lib.findings.edits import place_of
from eagle3lib.findings.finding import Edit
from eagle3lib.findings.rule import Facts, Inspection, Rule, drop_flag
from eagle3lib.trainers.trained_wiring import added_yarn

_DRAFT = "sgl-project/sglang srt/models/llama_eagle3.py"
_SMALL = "Small at short contexts, growing with the distance between tokens; a1 falls only for long prompts."


def _theta(i: Inspection) -> Iterator[Facts]:
    trained, served, rope = i.trained.switches.rope_theta, i.served.rope.theta, i.draft.rope
    if trained != served:
        key = place_of("rope_theta", i)
        why = next(
            (n for n in i.trained.notes if "rope_theta" in n),
            f"SGLang {i.served.version} does not read rope_parameters",
        )
        yield {
            "trained": f"{trained:g}",
            "served": f"{served:g}",
            "why": why,
            "subject": key,
            "remedy": f"Set {key} to {trained:g}.",
            "edits": [Edit("draft config", key, int(trained) if trained == int(trained) else trained)],
        }
    elif rope.spelling == "both" and i.draft.get("rope_theta") is not None and rope.theta != rope.legacy_theta:
        yield {
            "trained": f"{rope.legacy_theta:g} or {rope.theta:g}",
            "served": f"{served:g}",
            "subject": "rope_theta",
            "why": "rope_theta and rope_parameters.rope_theta disagree",
            "remedy": "Make both the value used in training.",
        }


def _scaling(i: Inspection) -> Iterator[Facts]:
    rope, target = i.draft.rope, i.target.rope if i.target else None
    if added_yarn(i.draft):
        yield {
            "severity": "note",
            "what": f"YaRN x{(rope.scaling or {}).get('factor')} stands in the config; "
            "ModelOpt trains without scaling and adds it on purpose when it exports",
            "remedy": "Nothing to do; without it set rope_scaling to null.",
        }
    elif rope.scaling and not i.served.rope.scaling:
        yield {
            "what": f"the {rope.kind} scaling stands in rope_parameters, which SGLang {i.served.version} does not read",
            "remedy": "Write it as rope_scaling too.",
            "edits": [Edit("draft config", "rope_scaling", dict(rope.scaling))],
        }
    elif target is None:
        return
    elif target.scaling and not rope.scaling and i.draft.dialect == "speculators":
        positions, original = i.draft.max_positions or 0, target.original_positions or i.target.max_positions or 0
        yield {
            "severity": "warning" if positions > original else "note",
            "what": f"the target scales its positions ({target.kind}), speculators copies that from it, and this "
            f"config has none (max_position_embeddings {positions:,}, the target's before scaling {original:,})",
            "remedy": "If it was trained with the target's scaling (converters before speculators PR 574 drop it), "
            "copy the target's rope_scaling.",
        }
    elif rope.scaling and dict(rope.scaling) != dict(target.scaling or {}) and rope.kind != target.kind:
        yield {
            "severity": "note",
            "what": f"the draft scales its positions ({rope.kind}), the target "
            f"{'by ' + target.kind if target.scaling else 'not at all'}",
            "remedy": "Right if it was trained so.",
        }


def _window(i: Inspection) -> Iterator[Facts]:
    trained, served = i.trained.switches.window, i.served.window
    if trained == served or trained and served and abs(trained - served) <= 1:
        return
    limit = min(w for w in (trained, served) if w)
    short = 0 < i.longest_prompt <= limit or i.served.context is not None and i.served.context <= limit
    facts = {
        "trained": f"the last {trained} tokens" if trained is not None else "the whole context",
        "served": f"the last {served} tokens" if served is not None else "the whole context",
        "limit": limit,
        "severity": "note" if short else "warning",
    }
    flag = "--speculative-draft-window-size"
    if trained is None:
        yield {**facts, **drop_flag(flag)}
    elif i.served.version == "0.5.9" or i.draft.mla:
        yield {**facts, "remedy": "No flag expresses it here."}
    else:
        yield {
            **facts,
            "remedy": f"Add {flag} {trained - 1} (SGLang counts the keys before the current one, the "
            f"trained window of {trained} counts it too).",
            "edits": [Edit("launch", flag, trained - 1)],
        }


def _context(i: Inspection) -> Iterator[Facts]:
    limit, context, prompt = draft_context(i.draft, i.launch, i.served.version), i.served.context, i.longest_prompt
    facts = {"limit": f"{limit:,}", "context": f"{context:,}" if context else "unknown", "prompt": f"{prompt:,}"}
    if any(crash.topic == "context" for crash in i.served.crashes):
        yield {
            **facts,
            "severity": "error",
            "effect": "The server does not start.",
            "remedy": f"Add --context-length {limit}, or set {CONTEXT_OVERRIDE}=1 and expect a loss "
            f"beyond {limit:,} tokens.",
            "edits": [Edit("launch", "--context-length", limit)],
        }
    elif prompt > limit:
        effect = f"Prompts of {prompt:,} tokens exceed what the draft saw: acceptance falls with length."
        yield {**facts, "effect": effect}
    elif context and context > limit:
        effect = "Nothing is lost while requests stay short."
        if i.launch.set_in_env(CONTEXT_OVERRIDE):
            effect = "The override lets it start; nothing is lost while requests stay short."
        elif not is_command(i.launch):
            cure = f"a server needs --context-length {limit} or {CONTEXT_OVERRIDE}=1."
            effect = f"Nothing is lost while requests stay short; to start, {cure}"
        yield {**facts, "severity": "note", "effect": effect}


RULES = (
    Rule("rope.theta", "warning", "rope_theta", _theta,
         evidence="Trained with base {trained}, served with {served}: {why}.",
         consequence=_SMALL,
         source="sgl-project/sglang srt/models/llama.py LlamaDecoderLayer.__init__; Tencent/AngelSlim llama_eagle3.py "
         "_init_rope; SafeAILab/EAGLE traineagle3/cnets.py _init_rope"),
    Rule("rope.scaling", "warning", "rope_scaling", _scaling,
         evidence="Position scaling: {what}.",
         consequence=_SMALL,
         source="NVIDIA/Model-Optimizer modelopt/torch/export/plugins/hf_spec_export.py; "
         "vllm-project/speculators PR 574"),
    Rule("attention.window", "warning", "sliding_window", _window,
         evidence="Trained to see {trained}, served with {served}: SGLang ignores sliding_window and layer_types.",
         consequence="The same up to {limit} tokens, a step down beyond.",
         source=_DRAFT + " LlamaForCausalLMEagle3.__init__"),
    Rule("context.length", "warning", "max_position_embeddings", _context,
         evidence="The draft's config allows {limit} tokens; the served context is {context}, the longest prompt "
         "{prompt} (0: unknown).",
         consequence="{effect}",
         remedy="Keep requests short, or train a draft on longer ones.",
         source="sgl-project/sglang srt/configs/model_config.py _derive_context_length"),
)  # fmt: skip
