"""Rules about the launch line: algorithm, steps and tree size, context, flags that change the draft or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from eagle3lib.engine.engine_config import CONTEXT_OVERRIDE, draft_context
from eagle3lib.engine.speculation import SETTING_FLAGS, is_command, tree_nodes
from eagle3lib.findings.catalogue import make_finding
from eagle3lib.findings.edits import drop_flag, set_flags
from eagle3lib.findings.finding import Edit, Finding
from eagle3lib.findings.inspection import Inspection
from eagle3lib.reading.launch import SETTING

#: Methods that need a checkpoint made for them; the others quantize plain weights when they load.
_NEEDS_CONFIG = (
    "awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "compressed_tensors", "modelopt", "modelopt_fp4",
    "marlin", "quark", "auto-round", "bitsandbytes",
)  # fmt: skip
#: Overrides that change what a draft computes, by its config's top-level name.
_FELT = (
    "rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings", "rms_norm_eps", "sliding_window",
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "architectures", "eagle_config", "draft_vocab_size", "norm_output", "fc_norm",
)  # fmt: skip
#: Flags that ``EngineConfig.ignored`` may name, and why it does.
_UNREAD = {
    "--speculative-token-map": "an EAGLE-3 draft brings its own map (d2t), the flag's is ignored",
    "--speculative-draft-sink-size": "not honoured for EAGLE-3 drafts",
    "--speculative-draft-window-size": "not honoured for MLA drafts",
}


def _judged(i: Inspection) -> bool:
    """True when there are SGLang flags to judge."""
    return bool(i.launch) and i.launch.program != "vllm"


def algorithm(i: Inspection) -> Iterator[Finding]:
    if not _judged(i):
        return
    kind, flag, path_flag = "flags.algorithm", "--speculative-algorithm", "--speculative-draft-model-path"
    given, served = i.launch.text("speculative_algorithm"), i.served.speculation.algorithm
    path, model = i.launch.text("speculative_draft_model_path"), i.launch.text("model_path")
    edits = [Edit("launch", flag, "EAGLE3")]
    if given is None:
        meant = any(name.startswith("speculative_") for name in i.launch.flags)
        if is_command(i.launch):
            what = f"no {flag}{' beside other speculative flags' if meant else ''}."
            yield make_finding(kind, flag, what, case="none", severity="error" if meant else "warning", edits=edits)
    elif served != "EAGLE3":
        what = f"{flag} {given} with an EAGLE-3 draft."
        yield make_finding(kind, flag, what, case="EAGLE" if served == "EAGLE" else "", edits=edits)
    elif path is None or model is not None and PurePath(path) == PurePath(model):
        what = f"{path_flag} is not given." if path is None else f"{path_flag} {path} is the target itself."
        yield make_finding(kind, path_flag, what, case="path", severity="error" if is_command(i.launch) else "note")


def steps(i: Inspection) -> Iterator[Finding]:
    if not _judged(i):
        return
    requested = [i.launch.integer(name) for name in SETTING]
    spec, tokens, changes = i.served.speculation, requested[2], {}
    chain = spec.num_steps if spec.num_steps and spec.num_steps > 1 else 3
    if refused := i.refusals("steps"):
        case, text, wanted = "", "; ".join(refused), (3, 1, 4)
    elif "num_draft_tokens" in spec.changed and tokens is not None:
        case, text, wanted = "overridden", spec.changed["num_draft_tokens"], (chain, 1, chain + 1)
        most = (spec.num_steps or 0) + 1
        changes["consequence"] = f"At most {most} tokens a verify step, not {tokens}."
        changes["severity"] = "error" if tokens > most else "warning"
    elif spec.topk and spec.topk > 1 and spec.num_steps and (spec.num_draft_tokens or 99) < spec.num_steps + 1:
        nodes = tree_nodes(spec.num_steps, spec.topk)
        text = f"a tree of {spec.num_steps} steps ({nodes} nodes) is cut to {spec.num_draft_tokens - 1} drafts"
        case, wanted = "cut", (spec.num_steps, spec.topk, 2 * (spec.num_steps + 1))
    elif i.launch.switch("speculative_adaptive"):
        case, text, wanted = "adaptive", "--speculative-adaptive is on", None
    else:
        return
    if wanted:
        changes |= set_flags(dict(zip(SETTING_FLAGS, wanted, strict=True)))
        changes["remedy"] += " Notebook 05 measures which length pays."
    flags = [f"{name} {value}" for name, value in zip(SETTING_FLAGS, requested, strict=True) if value is not None]
    effective = "/".join("?" if v is None else str(v) for v in (spec.num_steps, spec.topk, spec.num_draft_tokens))
    what = f"Requested: {' '.join(flags) or 'no settings'}. {text}. Effective: {effective}."
    yield make_finding("flags.steps_tokens", "--speculative-num-draft-tokens", what, case=case, **changes)


def refused(i: Inspection) -> Iterator[Finding]:
    for refusal in i.refusals("backend", "flag"):
        flag = next((word for word in refusal.split() if word.startswith("--")), "--attention-backend")
        drop = refusal in i.refusals("flag") or "rejection" in flag
        yield make_finding("flags.backend", flag, f"{refusal}.", **(drop_flag(flag) if drop else {}))


def context(i: Inspection) -> Iterator[Finding]:
    limit, served, prompt = draft_context(i.draft, i.launch, i.served.version), i.served.context, i.longest_prompt
    served_text = f"{served:,}" if served else "unknown"
    what = f"Context in tokens: draft {limit:,}, served {served_text}, longest prompt {prompt:,} (0: unknown)."
    changes: dict[str, Any] = {}
    if i.refusals("context"):
        changes = {"case": "refused", **set_flags({"--context-length": limit})}
        changes["remedy"] += f" Or set {CONTEXT_OVERRIDE}=1 and expect a loss beyond {limit:,} tokens."
    elif prompt > limit:
        changes["consequence"] = f"Prompts of {prompt:,} tokens are longer than the draft saw: acceptance falls."
    elif served and served > limit:
        overridden = i.launch.set_in_env(CONTEXT_OVERRIDE) or is_command(i.launch)
        changes["case"] = "allowed" if overridden else "longer"
    else:
        return
    yield make_finding("context.length", "max_position_embeddings", what, **changes)


def quantization(i: Inspection) -> Iterator[Finding]:
    method = (i.launch.text("quantization") or "").lower()
    own = i.launch.text("speculative_draft_model_quantization")
    if not _judged(i) or not method or method == "unquant" or own or i.draft.quantization:
        return
    flag = "--speculative-draft-model-quantization"
    what = f"--quantization {method} without {flag}: the draft inherits it, and its config has no quantization_config."
    stops = method in _NEEDS_CONFIG and not (method == "modelopt_fp4" and i.draft.mla)
    yield make_finding("flags.quantization", flag, what, case="settings" if stops else "")


def lossy(i: Inspection) -> Iterator[Finding]:
    name = "SGLANG_SIMULATE_ACC_LEN"
    simulated = i.launch.env.get(name, "")
    if simulated.strip() not in ("", "0", "-1", "-1.0", "0.0"):
        yield make_finding("flags.lossy", name, f"{name}={simulated}.", case="simulated")
    for which in ("single", "acc"):
        value = i.launch.number(f"speculative_accept_threshold_{which}")
        if value is not None and value < 1:
            flag = f"--speculative-accept-threshold-{which}"
            yield make_finding("flags.lossy", flag, f"{flag} {value:g} is below 1.", **drop_flag(flag))


def override(i: Inspection) -> Iterator[Finding]:
    given = i.launch.json("json_model_override_args") if _judged(i) else {}
    felt = {key: value for key, value in given.items() if key in _FELT and i.draft.get(key) != value}
    if felt:
        keys = ", ".join(f"{k}: {i.draft.get(k)} -> {v}" for k, v in sorted(felt.items()))
        what = f"--json-model-override-args changes the draft's config as well as the target's: {keys}."
        yield make_finding("flags.override", "--json-model-override-args", what)


def ignored(i: Inspection) -> Iterator[Finding]:
    kind = "flags.ignored"
    if i.launch.program == "vllm":
        yield make_finding(kind, "launch", f"{i.launch.notes[0]}.", case="vLLM")
        return
    for flag, why in _UNREAD.items():
        if flag in i.served.ignored:
            yield make_finding(kind, flag, f"{flag}: {why}.", **drop_flag(flag))
    if "SGLANG_ENABLE_SPEC_V2" in i.launch.env and i.served.version != "0.5.9":
        name = "SGLANG_ENABLE_SPEC_V2"
        what = f"{name} is gone in SGLang {i.served.version}: that worker always runs."
        yield make_finding(kind, name, what, case="gone")


RULES = (algorithm, steps, refused, context, quantization, lossy, override, ignored)
