"""Faulty pairs and their healthy twins, one row each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from static_pairs import LAYERS, SMALL, VOCAB, H, Pair

Change = Callable[[Pair], None]


def flags(text: str) -> Change:
    def change(p: Pair) -> None:
        p.launch = p.launch + " " + text

    return change


def steps(steps: int, topk: int | None, tokens: int | None) -> Change:
    def change(p: Pair) -> None:
        p.launch = p.launch.split(" --speculative-num-steps")[0] + f" --speculative-num-steps {steps}"
        p.launch += f" --speculative-eagle-topk {topk}" if topk is not None else ""
        p.launch += f" --speculative-num-draft-tokens {tokens}" if tokens is not None else ""

    return change


def draft(**fields: object) -> Change:
    return lambda p: p.draft.update(fields)


def weights(**tensors: torch.Tensor) -> Change:
    return lambda p: p.weights.update({k.replace("__", "."): v for k, v in tensors.items()})


def drop(*names: str) -> Change:
    return lambda p: [p.weights.pop(name) for name in names] and None


def both(*changes: Change) -> Change:
    return lambda p: [change(p) for change in changes] and None


def family(architecture: str, **fields: object) -> Change:
    return lambda p: p.target.update(architectures=[architecture], **fields)


def old(p: Pair) -> None:
    p.engine = "sglang==0.5.9"


def prompts(tokens: int) -> Change:
    def change(p: Pair) -> None:
        p.longest_prompt = tokens

    return change


def normed(p: Pair) -> None:
    p.weights |= {f"fc_norm.{i}.weight": torch.rand(H) + 0.5 for i in range(3)}


def absolute(p: Pair) -> None:
    p.weights["d2t"] = p.weights["d2t"] + torch.arange(SMALL)


def other_map(p: Pair) -> None:
    """A map of another making: valid, but not the one the head was made with."""
    kept = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(9))[:SMALL]
    p.weights["d2t"] = kept - torch.arange(SMALL)
    p.weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, kept, True)


def put(name: str, at: tuple[int, ...], value: float) -> Change:
    def change(p: Pair) -> None:
        p.weights[name][at] = value

    return change


def spec(**fields: object) -> Change:
    return lambda p: p.speculators(**fields)


SLIDING = {"sliding_window": 128, "layer_types": ["sliding_attention"], "use_sliding_window": True}
DEEPSEEK = family("DeepseekV3ForCausalLM", num_hidden_layers=61)
KIMI = family("KimiK25ForConditionalGeneration", num_hidden_layers=61)
SAME_EMBED = "embed_tokens.weight"


def own_embedding(change: float) -> Change:
    def put_it(p: Pair) -> None:
        p.weights[SAME_EMBED] = p.target_weights["model.embed_tokens.weight"] * (1 + change)

    return put_it


def wider(p: Pair) -> None:
    """A target wider than the draft."""
    p.target["hidden_size"] = 80
    p.target_weights = {}
    p.weights["fc.weight"] = torch.randn(H, 3 * 80)


def window(p: Pair) -> None:
    p.draft["transformer_layer_config"].update(SLIDING)


#: kind, the fault, its healthy twin (silent on that kind as error or warning)
CASES: list[tuple[str, Change, Change]] = [
    ("weights.missing", drop("lm_head.weight"), lambda p: None),
    ("weights.missing", drop("midlayer.self_attn.k_proj.weight"), lambda p: p.rename("midlayer.", "layers.0.")),
    ("weights.unread", lambda p: p.rename("midlayer.", "draft_model.midlayer."), lambda p: p.rename("", "")),
    (
        "weights.unread",
        both(old, lambda p: p.rename("midlayer.", "layers.0.")),
        lambda p: p.rename("midlayer.", "layers.0."),
    ),
    ("weights.unread", weights(fc__weight_scale=torch.rand(H)), weights(rotary_emb__inv_freq=torch.rand(8))),
    ("weights.shape", draft(intermediate_size=40), draft(intermediate_size=32)),
    ("weights.shape", draft(num_attention_heads=8), lambda p: None),
    ("weights.nonfinite", put("fc.weight", (3, 5), float("nan")), put("fc.weight", (3, 5), 100.0)),
    ("weights.nonfinite", put("lm_head.weight", (47, 63), float("inf")), lambda p: None),
    (
        "weights.nonfinite",
        weights(midlayer__mlp__up_proj__weight=torch.zeros(32, H)),
        weights(norm__weight=torch.ones(H)),
    ),
    (
        "vocab.map.missing",
        drop("d2t"),
        both(drop("d2t", "t2d"), draft(draft_vocab_size=VOCAB), weights(lm_head__weight=torch.randn(VOCAB, H))),
    ),
    ("vocab.map.missing", drop("d2t", "t2d"), drop("t2d")),
    ("vocab.map.absolute", absolute, lambda p: None),
    ("vocab.map.absolute", both(drop("t2d"), absolute), drop("t2d")),
    ("vocab.map.range", put("d2t", (0,), VOCAB), lambda p: None),
    ("vocab.map.duplicates", lambda p: p.weights["d2t"].__setitem__(1, p.weights["d2t"][0] - 1), lambda p: None),
    ("vocab.map.zero", both(drop("t2d"), lambda p: p.weights["d2t"].zero_()), drop("t2d")),
    (
        "vocab.map.dtype",
        lambda p: p.weights.update(d2t=p.weights["d2t"].float()),
        lambda p: p.weights.update(d2t=p.weights["d2t"].int()),
    ),
    ("vocab.map.length", weights(d2t=torch.zeros(SMALL - 8, dtype=torch.long)), lambda p: None),
    ("vocab.map.t2d", lambda p: p.weights["t2d"].fill_(True), lambda p: None),
    ("vocab.head_mismatch", draft(draft_vocab_size=VOCAB), lambda p: None),
    ("vocab.head_mismatch", other_map, lambda p: None),
    (
        "vocab.tied_head",
        draft(tie_word_embeddings=True),
        both(draft(tie_word_embeddings=True, draft_vocab_size=VOCAB), drop("lm_head.weight", "d2t", "t2d")),
    ),
    ("aux.ids_unread", spec(eagle_aux_hidden_state_layer_ids=[3, 7, 10]), spec()),
    (
        "aux.ids_unread",
        both(draft(aux_hidden_states_layer_ids=[2, 6, 9]), lambda p: p.draft.pop("eagle_config")),
        both(draft(aux_hidden_states_layer_ids=[1, 5, 8]), lambda p: p.draft.pop("eagle_config")),
    ),
    ("aux.ids_convention", lambda p: p.ids(2, 6, 9), lambda p: p.ids(1, 5, 8)),
    ("aux.ids_convention", both(KIMI, lambda p: p.ids(-1, 2, 30)), both(KIMI, lambda p: p.ids(0, 3, 31))),
    (
        "aux.ids_convention",
        both(draft(eagle_aux_hidden_state_layer_ids=[4, 7, 10]), lambda p: p.ids(4, 7, 10)),
        both(draft(eagle_aux_hidden_state_layer_ids=[4, 7, 10]), lambda p: p.ids(3, 6, 9)),
    ),
    (
        "aux.layers",
        both(draft(eagle_aux_hidden_state_layer_ids=[4, 7, 10]), lambda p: p.ids(1, 5, 8)),
        lambda p: p.ids(3, 6, 9),
    ),
    ("aux.order", draft(aux_hidden_states_layer_ids=[8, 1, 5]), draft(aux_hidden_states_layer_ids=[1, 5, 8])),
    (
        "aux.final_boundary",
        lambda p: p.ids(1, 5, LAYERS - 1),
        both(family("GptOssForCausalLM"), lambda p: p.ids(2, 6, LAYERS)),
    ),
    ("aux.count", lambda p: p.ids(1, 5, 5), lambda p: None),
    ("aux.count", lambda p: p.ids(1, 5), both(lambda p: p.ids(1, 5), weights(fc__weight=torch.randn(H, 2 * H)))),
    (
        "aux.count",
        both(lambda p: p.draft.pop("eagle_config"), family("LlamaForCausalLM", num_hidden_layers=5)),
        lambda p: p.draft.pop("eagle_config"),
    ),
    ("norm.before_residual", spec(norm_before_residual=True), spec()),
    ("norm.before_residual", draft(norm_before_residual=True), draft(norm_before_residual=False)),
    ("norm.output", both(old, draft(norm_output=True)), draft(norm_output=True)),
    (
        "norm.output",
        draft(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "norm_output": True}),
        lambda p: None,
    ),
    (
        "norm.before_fc",
        weights(input_norm__weight=torch.rand(3 * H)),
        both(weights(input_norm__weight=torch.rand(3 * H)), draft(norm_before_fc=True)),
    ),
    ("norm.fc", normed, both(normed, draft(fc_norm=True))),
    ("norm.fc", both(old, normed, draft(fc_norm=True)), both(normed, draft(use_aux_norm=True))),
    ("norm.head", both(draft(norm_output=False), weights(norm__weight=torch.ones(H))), draft(norm_output=False)),
    ("rope.theta", both(draft(rope_theta=1000000, aux_hidden_states_layer_ids=[1, 5, 8])), draft(rope_theta=1000000)),
    (
        "rope.theta",
        both(
            old,
            lambda p: p.draft.pop("rope_theta"),
            lambda p: p.draft.pop("rope_scaling"),
            draft(rope_parameters={"rope_theta": 5e5, "rope_type": "default"}),
        ),
        both(lambda p: p.draft.pop("rope_theta"), draft(rope_parameters={"rope_theta": 5e5, "rope_type": "default"})),
    ),
    (
        "rope.scaling",
        both(
            spec(),
            lambda p: p.target.update(
                rope_scaling={"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 512}
            ),
        ),
        draft(rope_scaling={"type": "yarn", "factor": 32, "original_max_position_embeddings": 2048}),
    ),
    ("attention.window", both(spec(), window), both(spec(), window, flags("--speculative-draft-window-size 128"))),
    ("attention.window", flags("--speculative-draft-window-size 128"), lambda p: None),
    (
        "context.length",
        draft(max_position_embeddings=512),
        both(draft(max_position_embeddings=512), flags("--context-length 512")),
    ),
    (
        "context.length",
        both(lambda p: setattr(p, "launch", ""), draft(max_position_embeddings=512), prompts(900)),
        both(lambda p: setattr(p, "launch", ""), draft(max_position_embeddings=512), prompts(200)),
    ),
    ("embed.replaced", own_embedding(0.5), own_embedding(0.0)),
    ("arch.unregistered", draft(architectures=["Eagle3LlamaForCausalLM"]), lambda p: None),
    ("arch.unregistered", spec(), lambda p: None),
    ("arch.unsupported", weights(midlayer__self_attn__q_norm__weight=torch.rand(16)), lambda p: None),
    (
        "arch.unsupported",
        weights(midlayer__self_attn__q_proj__bias=torch.rand(64)),
        both(draft(attention_bias=True), weights(midlayer__self_attn__o_proj__bias=torch.rand(H))),
    ),
    ("arch.unsupported", draft(hidden_act="gelu"), draft(hidden_act="silu")),
    ("arch.unsupported", weights(mask_hidden=torch.rand(1, 1, 3 * H)), lambda p: None),
    ("arch.unsupported", both(old, lambda p: p.ids(-1, 2, 8)), lambda p: p.ids(-1, 2, 8)),
    ("arch.unsupported", both(KIMI, old, lambda p: p.ids(-1, 2, 30)), both(KIMI, lambda p: p.ids(0, 3, 31))),
    ("flags.algorithm", lambda p: setattr(p, "launch", p.launch.replace("EAGLE3", "EAGLE")), lambda p: None),
    (
        "flags.algorithm",
        lambda p: setattr(p, "launch", p.launch.replace("EAGLE3", "nextn")),
        lambda p: setattr(p, "launch", p.launch.replace("EAGLE3", "eagle3")),
    ),
    (
        "flags.algorithm",
        lambda p: setattr(p, "launch", p.launch.replace("--speculative-draft-model-path draft", "")),
        lambda p: None,
    ),
    (
        "flags.algorithm",
        lambda p: setattr(p, "launch", p.launch.replace("-path draft", "-path target")),
        lambda p: None,
    ),
    ("flags.steps_tokens", steps(1, 1, 16), steps(3, 1, 4)),
    ("flags.steps_tokens", steps(3, 1, 8), steps(5, 1, 6)),
    ("flags.steps_tokens", steps(3, None, None), steps(5, 8, 64)),
    ("flags.steps_tokens", steps(1, 8, 64), steps(1, 1, 2)),
    (
        "flags.quantization",
        flags("--quantization fp8"),
        flags("--quantization fp8 --speculative-draft-model-quantization unquant"),
    ),
    (
        "flags.quantization",
        flags("--quantization awq"),
        both(flags("--quantization awq"), draft(quantization_config={"quant_method": "awq"})),
    ),
    (
        "flags.lossy",
        flags("--speculative-accept-threshold-single 0.5"),
        flags("--speculative-accept-threshold-single 1.0"),
    ),
    ("flags.lossy", lambda p: setattr(p, "launch", "SGLANG_SIMULATE_ACC_LEN=3 " + p.launch), lambda p: None),
    (
        "flags.override",
        flags("""--json-model-override-args '{"rope_theta": 1}'"""),
        flags("--json-model-override-args '{}'"),
    ),
    (
        "flags.backend",
        both(steps(3, 4, 8), flags("--page-size 64 --attention-backend fa4")),
        both(steps(3, 4, 8), flags("--page-size 64 --attention-backend fa3")),
    ),
    ("flags.backend", flags("--speculative-use-rejection-sampling"), lambda p: None),
    ("flags.ignored", flags("--speculative-token-map hot.pt"), lambda p: None),
    ("config.out_of_range", lambda p: p.ids(1, 5, 40), lambda p: None),
    ("config.out_of_range", draft(eos_token_id=VOCAB), draft(eos_token_id=VOCAB - 1)),
    ("config.out_of_range", draft(target_hidden_size=None), draft(target_hidden_size=H)),
    (
        "config.out_of_range",
        lambda p: p.draft.update(truncated_vocab_size=p.draft.pop("draft_vocab_size")),
        lambda p: None,
    ),
    ("config.out_of_range", draft(num_hidden_layers=2), lambda p: None),
    (
        "weights.shape",
        wider,
        both(wider, draft(target_hidden_size=80), weights(embed_tokens__weight=torch.randn(VOCAB, H))),
    ),
    ("flags.backend", flags("--speculative-frobnicate 3"), flags("--speculative-ngram-capacity 3")),
    ("flags.backend", flags("--speculative-draft-window-size=-1"), flags("--speculative-draft-window-size 128")),
    ("aux.ids_convention", lambda p: p.ids(0, 5, 8), lambda p: p.ids(-1, 5, 8)),
    ("aux.order", lambda p: p.ids(8, 1, 5), both(DEEPSEEK, lambda p: p.ids(20, 40, 1))),
    (
        "context.length",
        lambda p: setattr(p, "launch", "--context-length 4096"),
        lambda p: setattr(
            p, "launch", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 " + p.launch + " --context-length 4096"
        ),
    ),
    ("target.mismatch", lambda p: p.target.update(vocab_size=VOCAB + 8), lambda p: None),
    (
        "target.mismatch",
        spec(speculators_config={"verifier": {"architectures": ["Qwen3ForCausalLM"]}}),
        spec(speculators_config={"verifier": {"architectures": ["LlamaForCausalLM"]}}),
    ),
]


HEALTHY: list[Change] = [
    lambda p: None,
    steps(3, 4, 8),
    lambda p: setattr(p, "launch", ""),
    lambda p: setattr(
        p, "launch", "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    ),
    lambda p: p.draft.pop("eagle_config"),
    both(lambda p: setattr(p, "launch", ""), draft(max_position_embeddings=128)),
    own_embedding(0.0),
    weights(
        d2t=torch.arange(SMALL) * 0 + 3,
        t2d=torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, torch.arange(SMALL) + 3, True),
        lm_head__weight=torch.randn(SMALL, H),
    ),
    both(
        draft(
            eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_last_layernorm": True},
            rope_scaling={"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 2048},
        )
    ),
    both(normed, draft(fc_norm=True, norm_output=True)),
    both(KIMI, lambda p: p.ids(0, 3, 31)),
    both(DEEPSEEK, lambda p: p.ids(1, 29, 57)),
    both(family("GptOssForCausalLM"), lambda p: p.ids(2, 6, LAYERS)),
    lambda p: p.rename("midlayer.", "model.layers.0."),
]


CURES: list[tuple[Change, str, list[int] | None]] = [
    (both(KIMI, lambda p: p.ids(-1, 2, 30)), "sglang==0.5.23", [0, 3, 31]),
    (both(KIMI, lambda p: p.ids(-1, 2, 30)), "sglang==0.5.9", None),
    (both(DEEPSEEK, lambda p: p.ids(-1, 2, 30)), "sglang==0.5.9", None),
    (
        both(draft(eagle_aux_hidden_state_layer_ids=[0, 3, 7]), lambda p: p.draft.pop("eagle_config")),
        "sglang==0.5.23",
        [-1, 2, 6],
    ),
    (
        both(draft(eagle_aux_hidden_state_layer_ids=[0, 3, 7]), lambda p: p.draft.pop("eagle_config")),
        "sglang==0.5.9",
        None,
    ),
]
