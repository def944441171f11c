"""Rules about flags and environment settings that change the draft, its output, or nothing at all."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lib.findings.rule import Facts, Inspection, Rule, drop_flag
from eagle3lib.findings.rules_speculation import judged

#: Methods that need a checkpoint made for them; the others quantise plain weights when they load.
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
#: Flags that ``Served.ignored`` may name, and why it does.
_UNREAD = {
    "--speculative-token-map": "an EAGLE-3 draft brings its own map (d2t), the flag's is ignored",
    "--speculative-draft-sink-size": "not honoured for EAGLE-3 drafts",
    "--speculative-draft-window-size": "not honoured for MLA drafts",
}


def _quantization(i: Inspection) -> Iterator[Facts]:
    method = (i.launch.text("quantization") or "").lower()
    own = i.launch.text("speculative_draft_model_quantization")
    if not judged(i) or not method or method == "unquant" or own or i.draft.quantization:
        return
    hard = method in _NEEDS_CONFIG and not (method == "modelopt_fp4" and i.draft.mla)
    yield {
        "method": method,
        "severity": "error" if hard else "warning",
        "effect": f"The server stops: it looks for {method} settings in the draft's folder."
        if hard
        else "The draft's projections are quantised when they load: a small loss at every position.",
    }


def _lossy(i: Inspection) -> Iterator[Facts]:
    simulated = i.launch.env.get("SGLANG_SIMULATE_ACC_LEN", "")
    if simulated.strip() not in ("", "0", "-1", "-1.0", "0.0"):
        yield {
            "severity": "error",
            "subject": "SGLANG_SIMULATE_ACC_LEN",
            "text": f"SGLANG_SIMULATE_ACC_LEN={simulated}",
            "effect": "Accept lengths are made up: no number from this server means anything.",
            "remedy": "Unset SGLANG_SIMULATE_ACC_LEN.",
        }
    for name in ("single", "acc"):
        value = i.launch.number(f"speculative_accept_threshold_{name}")
        if value is not None and value < 1:
            flag = f"--speculative-accept-threshold-{name}"
            yield {
                "subject": flag,
                "text": f"{flag} {value:g} is below 1",
                "effect": "Sampled requests accept tokens the target would not have drawn: output changes, and accept "
                "lengths are not comparable.",
                **drop_flag(flag),
            }


def _override(i: Inspection) -> Iterator[Facts]:
    given = i.launch.json("json_model_override_args") if judged(i) else {}
    felt = {key: value for key, value in given.items() if key in _FELT and i.draft.get(key) != value}
    if felt:
        yield {"keys": ", ".join(f"{k}: {i.draft.get(k)} -> {v}" for k, v in sorted(felt.items()))}


def _ignored(i: Inspection) -> Iterator[Facts]:
    if i.launch.program == "vllm":
        yield {
            "subject": "launch",
            "severity": "note",
            "text": i.launch.notes[0],
            "remedy": "Paste the SGLang line, or its /server_info.",
        }
        return
    for flag, why in _UNREAD.items():
        if flag in i.served.ignored:
            yield {"subject": flag, "text": f"{flag}: {why}", **drop_flag(flag)}
    if "SGLANG_ENABLE_SPEC_V2" in i.launch.env and i.served.version != "0.5.9":
        yield {
            "subject": "SGLANG_ENABLE_SPEC_V2",
            "severity": "note",
            "text": f"SGLANG_ENABLE_SPEC_V2 is gone in SGLang {i.served.version}: that worker always runs",
            "remedy": "Unset it.",
        }


RULES = (
    Rule("flags.quantization", "warning", "--speculative-draft-model-quantization", _quantization,
         evidence="--quantization {method} without --speculative-draft-model-quantization: the draft inherits it, and "
         "its config has no quantization_config.",
         consequence="{effect}",
         remedy="Add --speculative-draft-model-quantization unquant.",
         source="sgl-project/sglang srt/arg_groups/serving_hook.py _handle_missing_default_values"),
    Rule("flags.lossy", "warning", "launch", _lossy,
         evidence="{text}.",
         consequence="{effect}",
         source="sgl-project/sglang srt/speculative/eagle_utils.py eagle_sample; srt/environ.py"),
    Rule("flags.override", "warning", "--json-model-override-args", _override,
         evidence="--json-model-override-args changes the draft's config as well as the target's: {keys}.",
         consequence="The draft is served with values it was not trained with.",
         remedy="Write the override into the target's config.json instead.",
         source="sgl-project/sglang srt/configs/model_config.py ModelConfig.from_server_args"),
    Rule("flags.ignored", "warning", "launch", _ignored,
         evidence="{text}.",
         consequence="It changes nothing, though somebody may count on it.",
         source="sgl-project/sglang srt/speculative/eagle_worker_v2.py init_token_map; srt/arg_groups/fields/spec.py"),
)  # fmt: skip
