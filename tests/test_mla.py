"""Drafts with multi-head latent attention (DeepSeek, Kimi).

Held against SGLang's own ``Eagle3DeepseekV2ForCausalLM`` on a CPU (marked ``engine``), and against transformers'
``DeepseekV3Attention`` with the doubled input where SGLang's class refuses: no ``q_lora_rank``, several layers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.findings.config_rules import inspect
from eagle3lib.findings.wiring_rules import measured_wiring, sample_findings
from eagle3lib.maths import draft as forward_pass
from eagle3lib.maths.draft import combine, depth_states
from eagle3lib.maths.draft_weights import Draft, head_weight
from eagle3lib.maths.kernels import chain_attention, rms_norm
from eagle3lib.maths.trace import trace
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.replay import STAGES, replay
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.measuring.wiring_search import search_wiring
from eagle3lib.reading.captures import Capture
from eagle3lib.reading.samples import read_samples, write_sample
from tests import test_wiring_search
from tests.engine.engine_jobs import ENVIRONMENT
from tests.engine.mla_in_sglang import DEPTHS
from tests.plain_attention import plain_chain_attention
from tests.static_pairs import VOCAB, H, Pair

TOKENS, STARTS = 24, (0, 5, 19)
HEADS, Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 4, 24, 20, 10, 8, 12
SHAPE = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": HEADS,
    "q_lora_rank": Q_RANK, "kv_lora_rank": KV_RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE, "hidden_act": "silu",
}  # fmt: skip
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 32, "beta_slow": 1}
KIMI_YARN = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
UNEVEN = YARN | {"mscale": 0.7, "mscale_all_dim": 1.4}
NORMS = {"fc_norm": True, "norm_output": True}
CLASSIC = Wiring(boundaries=(0, 3, 6))


def mla_pair(**fields: Any) -> Pair:
    """The sound static pair with an MLA draft; weights of the size that training leaves."""
    pair, draw = Pair(), torch.Generator().manual_seed(3)
    del pair.draft["head_dim"]
    pair.draft |= SHAPE | fields
    kept = {name: pair.weights[name] for name in ("lm_head.weight", "d2t", "t2d")}
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (H, 3 * H), "norm.weight": (H,)}
    shapes |= {f"fc_norm.{i}.weight": (H,) for i in range(3) if fields.get("fc_norm")}
    for i in range(pair.draft["num_hidden_layers"]):
        wide, at = (2 * H if i == 0 else H), f"layers.{i}.self_attn."
        rank, value = pair.draft["q_lora_rank"], pair.draft["v_head_dim"]
        down = {"q_a_proj": (rank, wide), "q_a_layernorm": (rank,)} if rank else {}
        own = down | {
            "q_b_proj" if rank else "q_proj": (HEADS * (NOPE + ROPE), rank or wide),
            "kv_a_proj_with_mqa": (KV_RANK + ROPE, wide), "kv_a_layernorm": (KV_RANK,),
            "kv_b_proj": (HEADS * (NOPE + value), KV_RANK), "o_proj": (H, HEADS * value),
        }  # fmt: skip
        shapes |= {f"{at}{name}.weight": shape for name, shape in own.items()}
        mlp = {"gate_proj": (32, H), "up_proj": (32, H), "down_proj": (H, 32)}
        shapes |= {f"layers.{i}.mlp.{name}.weight": shape for name, shape in mlp.items()}
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        shapes |= {f"layers.{i}.{name}.weight": (H,) for name in norms}
    random = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    pair.weights = kept | {n: 1 + 0.3 * w if w.dim() == 1 else 0.2 * w for n, w in random.items()}
    return pair


def inputs() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(4)
    return torch.randn(TOKENS, 3, H, generator=draw), torch.randint(VOCAB, (TOKENS,), generator=draw)


def ours(draft: Draft, wiring: Wiring) -> tuple[Tensor, Tensor]:
    """``logits [starts, DEPTHS, V_d]`` and the states fed back ``[starts, DEPTHS, H]``."""
    states, tokens = inputs()
    hidden, at = combine(draft, wiring, states), torch.tensor(STARTS)
    found = [state[at] for state in depth_states(draft, wiring, hidden, tokens, DEPTHS)]
    normed = [rms_norm(state, draft.norm, draft.eps) for state in found]
    logits = [F.linear(state, head_weight(draft, wiring)) for state in normed]
    return torch.stack(logits, 1), torch.stack(normed if wiring.norm_output else found, 1)


def assert_same(here: Tensor, there: Tensor) -> None:
    assert (here - there).norm() <= 1e-5 * there.norm()


def assert_same_choice(here: Tensor, there: Tensor) -> None:
    assert_same(here, there)
    top = there.topk(2, -1).values
    clear = top[..., 0] - top[..., 1] > 1e-4
    assert clear.any() and (here.argmax(-1) == there.argmax(-1))[clear].all()


def loaded(pair: Pair, folder: Path) -> Draft:
    path, _ = pair.write(folder)
    return Draft.load(path, pair.target_weights["model.embed_tokens.weight"])


def served(pair: Pair, folder: Path) -> tuple[Draft, Wiring, Path]:
    """The draft, and the wiring in which 01 says that SGLang serves it."""
    path, target = pair.write(folder)
    inspection = inspect(path, target, pair.launch, pair.engine)
    assert [f for f in inspection.findings if f.severity != "note"] == [], "a sound pair"
    return Draft.load(path, pair.target_weights["model.embed_tokens.weight"]), inspection.served.wiring, path


ENGINE_CASES: dict[str, dict[str, Any]] = {
    "kimi": {"rope_scaling": KIMI_YARN, "rope_theta": 5e4},
    "mscales differ, every norm": {"rope_scaling": UNEVEN, **NORMS},
    "no mscale": {"rope_scaling": YARN},
    "plain rotary": {"norm_output": True},
    "values wider than keys": {"v_head_dim": 20},
}


@pytest.mark.engine
def test_every_depth_is_sglang_s_own_class(tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    pytest.importorskip("eagle3_sglang_cpu")
    states, tokens = inputs()
    cases = {}
    for name, fields in ENGINE_CASES.items():
        pair = mla_pair(**fields)
        cases[name] = served(pair, tmp_path / name)
        embedding = pair.target_weights["model.embed_tokens.weight"]
        given = {"states": states, "tokens": tokens, "starts": torch.tensor(STARTS), "embedding": embedding}
        save_file(given, cases[name][2] / "inputs.safetensors")
    script = Path(__file__).parent / "engine" / "mla_in_sglang.py"
    command = [sys.executable, script, *(path for _, _, path in cases.values())]
    here = {"PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run(command, env=os.environ | ENVIRONMENT | here, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    for draft, wiring, path in cases.values():
        theirs = load_file(path / "outputs.safetensors")
        logits, fed_back = ours(draft, wiring)
        assert_same_choice(logits, theirs["logits"])
        assert_same(fed_back, theirs["states"])
        stages = replay([captured(file) for file in sorted((path / "passes").iterdir())], draft, wiring)
        assert [stage.stage for stage in stages] == list(STAGES)
        assert all(stage.relative <= 1e-5 for stage in stages), stages


def captured(file: Path) -> Capture:
    stages = load_file(file)
    return Capture(file.name, file.stem, None, stages["positions"], stages)


TRANSFORMERS_CASES: dict[str, dict[str, Any]] = {
    "no latent for queries": {"q_lora_rank": None},
    "no latent for queries, yarn, two layers": {"q_lora_rank": None, "rope_scaling": KIMI_YARN, "num_hidden_layers": 2},
    "mscales differ, two layers": {
        "rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.4},
        "num_hidden_layers": 2,
    },
    "rotary pairs in halves": {"rope_interleave": False, "rope_scaling": KIMI_YARN},
}


def transformers_chain(
    weights: dict[str, Tensor], config: dict[str, Any], table: Tensor, hidden: Tensor, tokens: Tensor, start: int
) -> Tensor:
    """States ``[DEPTHS, H]`` of one chain, transformers' attention over its own cache and no sum of ours."""
    from transformers import DeepseekV3Config, DynamicCache
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    made = DeepseekV3Config(**config)
    made._attn_implementation = "eager"
    rotary, cache = DeepseekV3RotaryEmbedding(made), DynamicCache()
    layers = []
    for i in range(config["num_hidden_layers"]):
        attention = DeepseekV3Attention(made, i).eval()
        own = {n.split("self_attn.")[1]: w for n, w in weights.items() if n.startswith(f"layers.{i}.self_attn.")}
        for name, module in attention.named_modules():
            if f"{name}.weight" in own:
                module.weight = torch.nn.Parameter(own[f"{name}.weight"])
                if name.endswith("layernorm"):
                    module.variance_epsilon = config["rms_norm_eps"]
        layers.append(attention)

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (H,), weights[f"{name}.weight"], config["rms_norm_eps"])

    found, hidden, at = [], hidden[None, : start + 1], torch.arange(start + 1)
    for _ in range(DEPTHS):
        length = len(at)
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None] if length > 1 else None
        for i, attention in enumerate(layers):
            x = norm(hidden, f"layers.{i}.hidden_norm")
            if i == 0:
                x = torch.cat([norm(F.embedding(tokens[at + 1], table)[None], "layers.0.input_layernorm"), x], -1)
            hidden = hidden + attention(x, rotary(x, at[None]), mask, past_key_values=cache)[0]
            x = norm(hidden, f"layers.{i}.post_attention_layernorm")
            up, gate, down = (weights[f"layers.{i}.mlp.{name}_proj.weight"] for name in ("up", "gate", "down"))
            hidden = hidden + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
        found.append(hidden[0, -1])
        hidden, at = hidden[:, -1:], at[-1:] + 1
    return torch.stack(found)


@pytest.mark.parametrize("attention", [chain_attention, plain_chain_attention])
@pytest.mark.parametrize("fields", TRANSFORMERS_CASES.values(), ids=list(TRANSFORMERS_CASES))
@torch.inference_mode()
def test_chains_are_transformers_own(
    fields: dict[str, Any], attention: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_pass, "chain_attention", attention)
    pair = mla_pair(**fields)
    draft, wiring = loaded(pair, tmp_path), CLASSIC.replace(rope_scaling=pair.draft["rope_scaling"])
    (states, tokens), table = inputs(), pair.target_weights["model.embed_tokens.weight"]
    hidden = F.linear(states.flatten(1), pair.weights["fc.weight"])
    chains = [transformers_chain(pair.weights, pair.draft, table, hidden, tokens, start) for start in STARTS]
    logits, fed_back = ours(draft, wiring)
    assert_same(fed_back, torch.stack(chains))
    normed = F.rms_norm(torch.stack(chains), (H,), pair.weights["norm.weight"], pair.draft["rms_norm_eps"])
    assert_same_choice(logits, F.linear(normed, pair.weights["lm_head.weight"]))


def test_the_fused_projection_is_read_here_and_dropped_by_the_engine(tmp_path: Path) -> None:
    pair, apart = mla_pair(), loaded(mla_pair(), tmp_path / "apart")
    at = "layers.0.self_attn."
    both = [pair.weights.pop(f"{at}{name}.weight") for name in ("q_a_proj", "kv_a_proj_with_mqa")]
    pair.weights[f"{at}fused_qkv_a_proj_with_mqa.weight"] = torch.cat(both)
    assert torch.equal(ours(loaded(pair, tmp_path / "fused"), CLASSIC)[0], ours(apart, CLASSIC)[0])
    found = inspect(*pair.write(tmp_path / "fused"), pair.launch, pair.engine).findings
    assert {f.kind for f in found if f.severity == "error"} == {"weights.missing", "weights.unread"}


@pytest.mark.parametrize("fields", [{"q_lora_rank": None}, {"architectures": ["DeepseekV3ForCausalLMEagle3"]}])
def test_what_sglang_cannot_serve_is_computed_and_flagged_once(fields: dict[str, Any], tmp_path: Path) -> None:
    pair = mla_pair(num_key_value_heads=3, **fields)  # which MLA does not read
    loaded(pair, tmp_path)
    errors = [f for f in inspect(*pair.write(tmp_path), pair.launch, pair.engine).findings if f.severity == "error"]
    assert len(errors) == 1, errors


def test_a_missing_projection_is_named(tmp_path: Path) -> None:
    pair = mla_pair()
    del pair.weights["layers.0.self_attn.q_b_proj.weight"]
    with pytest.raises(InputError, match="q_b_proj"):
        loaded(pair, tmp_path)


def test_the_trace_follows_the_latents(tmp_path: Path) -> None:
    states, tokens = inputs()
    stages = {stage.name: stage for stage in trace(loaded(mla_pair(), tmp_path), CLASSIC, states, tokens, 7, 1)}
    assert stages["concatenation"].shape == (2 * H,) and stages["attention"].shape == (HEADS * VALUE,)
    assert {"latent q", "latent k", "latent v"} <= set(stages)


def test_the_incident_of_a_target_too_large_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kimi-K2.5's shape, an MLA draft, and a trainer's files of three states a token: the cure is named."""
    trained = (0, 3, 31)
    for name, value in (("WIDTH", H), ("VOCAB", VOCAB), ("BOUNDARIES", 32)):
        monkeypatch.setattr(test_wiring_search, name, value)
    plan, dataset = test_wiring_search.planted(CLASSIC.replace(boundaries=trained), noise=0.3)
    pair = mla_pair(draft_vocab_size=VOCAB, rope_scaling=KIMI_YARN)
    text = pair.target | {"num_hidden_layers": 61, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2"}
    kind = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"}
    pair.target = kind | {"text_config": text}
    pair.ids(3, 31, 59)
    del pair.weights["d2t"], pair.weights["t2d"]
    pair.weights |= {"fc.weight": plan.fc.weight, "lm_head.weight": plan.lm_head, "norm.weight": torch.ones(H)}
    for name in ("self_attn.o_proj", "mlp.down_proj"):  # what was planted is in fc and head alone
        pair.weights[f"layers.0.{name}.weight"] *= 1e-3
    inspection = inspect(*pair.write(tmp_path), pair.launch, pair.engine)
    for m in dataset:
        write_sample(tmp_path / "k" / f"{m.sample.name}.safetensors",
                     replace(m.sample, states=m.stack(trained), boundaries=trained))  # fmt: skip
    made = [
        SampleStates.of(sample, sample.states, sample.boundaries, None)
        for sample in read_samples(tmp_path / "k", H, None, VOCAB)
    ]
    draft = Draft.load(tmp_path / "draft", plan.target_embedding)
    wiring, _ = measured_wiring(inspection, made)
    search = search_wiring(draft, wiring, made, DEPTHS)
    assert (search.answer, wiring.boundaries, wiring.rope_scaling["mscale"]) == ("sound", trained, 1.0)
    (found,) = sample_findings(inspection, wiring, search.as_configured.conditional_depth1)
    assert (found.kind, found.severity, found.edits[0].value) == ("aux.layers", "error", list(trained))
    turned = search_wiring(draft, wiring.replace(boundaries=(31, 0, 3)), made, DEPTHS)
    assert (turned.answer, turned.candidates[0].wiring.boundaries) == ("wiring", trained)
