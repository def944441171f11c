"""Our forward pass against the trainers' own classes in float32: states, logits, argmax at every depth."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3lib.maths import draft as forward_pass
from eagle3lib.maths.draft import combine, depth_states, forward
from eagle3lib.maths.draft_weights import Draft, Layer, Linear, head_weight
from eagle3lib.maths.kernels import chain_attention, rms_norm
from eagle3lib.maths.trace import trace
from eagle3lib.maths.wiring import Wiring
from tests.plain_attention import plain_chain_attention

VOCAB, DRAFT_VOCAB, WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM, EPS = 120, 80, 48, 96, 4, 2, 16, 1e-5
TOKENS, DEPTHS = 37, 4
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def random_draft(layers: int = 1, aux_states: int = 3, biases: bool = False, seed: int = 0) -> Draft:
    """Random weights, norms too: a norm left at ones would hide a norm in the wrong place."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 0.2) -> Tensor:
        return torch.randn(*shape, generator=draw) * scale

    def norm(width: int) -> Tensor:
        return 1 + 0.3 * torch.randn(width, generator=draw)

    def linear(out: int, width: int) -> Linear:
        return Linear(normal(out, width), normal(out) if biases else None)

    def layer(width: int) -> Layer:
        return Layer(
            q_proj=linear(HEADS * HEAD_DIM, width), k_proj=linear(KV_HEADS * HEAD_DIM, width),
            v_proj=linear(KV_HEADS * HEAD_DIM, width), o_proj=linear(WIDTH, HEADS * HEAD_DIM),
            gate_proj=normal(INNER, WIDTH), up_proj=normal(INNER, WIDTH), down_proj=normal(WIDTH, INNER),
            post_attention_layernorm=norm(WIDTH), input_layernorm=norm(WIDTH), hidden_norm=norm(WIDTH),
            q_norm=norm(HEAD_DIM), k_norm=norm(HEAD_DIM),
        )  # fmt: skip

    return Draft(
        fc=Linear(normal(WIDTH, aux_states * WIDTH)),
        input_norm=norm(aux_states * WIDTH),
        fc_norms=tuple(norm(WIDTH) for _ in range(aux_states)),
        layers=tuple(layer(2 * WIDTH if i == 0 else WIDTH) for i in range(layers)),
        norm=norm(WIDTH),
        lm_head=normal(DRAFT_VOCAB, WIDTH),
        own_embedding=normal(VOCAB, WIDTH, scale=1.0),
        target_embedding=normal(VOCAB, WIDTH, scale=1.0),
        d2t=torch.arange(DRAFT_VOCAB) // 2,
        num_aux_hidden_states=aux_states, head_dim=HEAD_DIM, eps=EPS, max_positions=256,
    )  # fmt: skip


def sample(aux_states: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(7)
    states = (
        torch.randn(TOKENS, aux_states, WIDTH, generator=draw) * torch.tensor([0.3, 2.0, 9.0, 5.0])[:aux_states, None]
    )
    return states, torch.randint(VOCAB, (TOKENS,), generator=draw)


def ours(
    draft: Draft, wiring: Wiring, states: Tensor, tokens: Tensor, depths: int
) -> tuple[list[Tensor], list[Tensor]]:
    """States and logits of each depth, for the rows whose fed token is known."""
    hidden = combine(draft, wiring, states)
    seen = known(list(depth_states(draft, wiring, hidden, tokens, depths)), tokens)
    last = [rms_norm(h, draft.norm, draft.eps) if wiring.norm_before_head else h for h in seen]
    return seen, [F.linear(h, head_weight(draft, wiring)) for h in last]


def assert_same(mine: list[Tensor], theirs: list[Tensor], logits: bool = False) -> None:
    assert len(mine) == len(theirs) > 0
    for depth, (a, b) in enumerate(zip(mine, theirs, strict=True), 1):
        assert a.shape == b.shape
        error = (torch.linalg.norm((a - b).double()) / torch.linalg.norm(b.double())).item()
        assert error <= 1e-5, f"depth {depth}: relative error {error}"
        if logits:
            top = b.topk(2, -1).values
            clear = top[:, 0] - top[:, 1] > 1e-4
            assert (a.argmax(-1) == b.argmax(-1))[clear].all(), f"depth {depth}: another argmax"


def rope_parameters(wiring: Wiring) -> dict:
    return {"rope_type": "default", "rope_theta": wiring.rope_theta, **(wiring.rope_scaling or {})}


# ---- speculators ----


def speculators_model(draft: Draft, wiring: Wiring):  # noqa: ANN201
    pytest.importorskip("speculators")
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    qwen = wiring.qk_norm
    kind = Qwen3Config if qwen else LlamaConfig
    config = kind(
        vocab_size=VOCAB, hidden_size=draft.width, intermediate_size=draft.layers[0].gate_proj.shape[0],
        num_hidden_layers=len(draft.layers), num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        head_dim=draft.head_dim, rms_norm_eps=draft.eps, max_position_embeddings=draft.max_positions,
        attention_bias=wiring.attention_bias,
        rope_parameters=rope_parameters(wiring),
    )  # fmt: skip
    if wiring.window:
        config.sliding_window, config.layer_types = wiring.window, ["sliding_attention"] * len(draft.layers)
    config._attn_implementation = "eager"
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    proposal = GreedyTokenProposalConfig(speculative_tokens=3)
    model = Eagle3DraftModel(Eagle3SpeculatorConfig(
        transformer_layer_config=config, draft_vocab_size=DRAFT_VOCAB,
        norm_before_residual=wiring.norm_before_residual, norm_before_fc=wiring.norm_before_fc,
        fc_norm=wiring.fc_norm, norm_output=wiring.norm_output,
        eagle_aux_hidden_state_layer_ids=list(range(draft.num_aux_hidden_states)),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3", verifier=verifier,
            proposal_methods=[proposal], default_proposal_method="greedy",
        ),
    ))  # fmt: skip
    return model.eval()


def speculators_run(draft: Draft, wiring: Wiring, states: Tensor, tokens: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    model = speculators_model(draft, wiring)
    weights = named(draft, "layers.0.", wiring)
    weights |= {"embed_tokens.weight": draft.target_embedding, "t2d": torch.zeros(VOCAB, dtype=torch.bool)}
    weights |= {
        f"verifier_{name}": draft.norm if name == "norm.weight" else draft.lm_head
        for name in ("norm.weight", "lm_head.weight")
    }
    model.load_state_dict(weights, strict=True)
    seen, logits = [], []
    model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0][0].clone()))
    model.lm_head.register_forward_hook(lambda module, args, out: logits.append(out[0].clone()))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        model(
            hidden_states=states[:-1].flatten(1)[None], input_ids=tokens[None, 1:],
            document_ids=torch.zeros(1, len(tokens) - 1, dtype=torch.long), ttt_steps=DEPTHS,
        )  # fmt: skip
    return known(seen, tokens), known(logits, tokens)


def named(draft: Draft, first_layer: str, wiring: Wiring) -> dict[str, Tensor]:
    """The draft's tensors by the names that trainers use, those the wiring needs and no other."""
    out = {"fc.weight": draft.fc.weight, "norm.weight": draft.norm, "lm_head.weight": draft.lm_head, "d2t": draft.d2t}
    for i, layer in enumerate(draft.layers):
        at = first_layer if i == 0 else f"layers.{i}."
        out[at + "input_layernorm.weight"] = layer.input_layernorm
        out[at + "post_attention_layernorm.weight"] = layer.post_attention_layernorm
        if i == 0:
            out[at + "hidden_norm.weight"] = layer.hidden_norm
        for name in "qkvo":
            linear = getattr(layer, f"{name}_proj")
            out[f"{at}self_attn.{name}_proj.weight"] = linear.weight
            if wiring.attention_bias:
                out[f"{at}self_attn.{name}_proj.bias"] = linear.bias
        for name in ("gate", "up", "down"):
            out[f"{at}mlp.{name}_proj.weight"] = getattr(layer, f"{name}_proj")
        if wiring.qk_norm:
            out |= {f"{at}self_attn.q_norm.weight": layer.q_norm, f"{at}self_attn.k_norm.weight": layer.k_norm}
    if wiring.norm_before_fc:
        out["input_norm.weight"] = draft.input_norm
    if wiring.fc_norm:
        out |= {f"fc_norm.{k}.weight": norm for k, norm in enumerate(draft.fc_norms)}
    return out


def known(values: list[Tensor], tokens: Tensor) -> list[Tensor]:
    """The rows of each depth whose fed token is a true one."""
    return [value[: len(tokens) - depth] for depth, value in enumerate(values, 1)]


CLASSIC = Wiring(boundaries=(0, 3, 5), rope_theta=1e5)
SPECULATORS = {
    "classic": (CLASSIC, {}),
    "norm_before_residual": (CLASSIC.replace(norm_before_residual=True), {}),
    "norm_before_fc": (CLASSIC.replace(norm_before_fc=True), {}),
    "fc_norm": (CLASSIC.replace(fc_norm=True), {}),
    "norm_output": (CLASSIC.replace(norm_output=True), {}),
    "all norms": (CLASSIC.replace(norm_before_residual=True, fc_norm=True, norm_output=True), {}),
    "biases": (CLASSIC.replace(attention_bias=True), {"biases": True}),
    "q and k norms": (CLASSIC.replace(qk_norm=True), {}),
    "two layers": (CLASSIC.replace(later_norm="input_layernorm"), {"layers": 2}),
    "window": (CLASSIC.replace(window=9), {}),
    "llama3 rope": (CLASSIC.replace(rope_scaling=LLAMA3), {}),
    "yarn rope": (CLASSIC.replace(rope_scaling=YARN), {}),
    "four aux states": (CLASSIC.replace(boundaries=(0, 2, 3, 5)), {"aux_states": 4}),
    "one aux state": (CLASSIC.replace(boundaries=(4,)), {"aux_states": 1}),
}


@pytest.mark.parametrize("name", SPECULATORS)
@pytest.mark.parametrize("attention", [chain_attention, plain_chain_attention])
def test_equals_speculators(name: str, attention, monkeypatch) -> None:  # noqa: ANN001
    monkeypatch.setattr(forward_pass, "chain_attention", attention)
    wiring, made = SPECULATORS[name]
    draft = random_draft(**made)
    states, tokens = sample(draft.num_aux_hidden_states)
    hidden, logits = ours(draft, wiring, states, tokens, DEPTHS)
    their_hidden, their_logits = speculators_run(draft, wiring, states, tokens)
    assert_same(hidden, their_hidden)
    assert_same(logits, their_logits, logits=True)


# ---- SpecForge ----

SPECFORGE = {
    "classic": (CLASSIC, {}),
    "fc_norm": (CLASSIC.replace(fc_norm=True), {"fc_norm": True}),
    "norm_output false": (CLASSIC.replace(norm_before_head=False), {"norm_output": False}),
    "linear rope": (CLASSIC.replace(rope_scaling={"rope_type": "linear", "factor": 2.0}), {}),
    "llama3 rope": (CLASSIC.replace(rope_scaling=LLAMA3), {}),
}


@pytest.mark.parametrize("name", SPECFORGE)
def test_equals_specforge(name: str) -> None:
    pytest.importorskip("specforge")
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3, prepare_decoder_attention_mask
    from transformers import LlamaConfig

    wiring, fields = SPECFORGE[name]
    draft, (states, tokens) = random_draft(), sample()
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, rms_norm_eps=EPS, max_position_embeddings=256,
        rope_parameters=rope_parameters(wiring),
        draft_vocab_size=DRAFT_VOCAB, pad_token_id=0, **fields,
    )  # fmt: skip
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        model = LlamaForCausalLMEagle3(config, attention_backend="sdpa").eval()
        weights = named(draft, "midlayer.", wiring) | {"embed_tokens.weight": draft.target_embedding}
        model.load_state_dict(weights | {"t2d": torch.ones(VOCAB, dtype=torch.bool)}, strict=True)
        rows, cache, fed = len(tokens) - 1, [[], []], tokens[1:]
        hidden = model.project_hidden_states(states[None, :-1].flatten(2))
        mask = prepare_decoder_attention_mask(torch.ones(1, rows, dtype=torch.bool), (1, rows), hidden, 0)
        seen, logits = [], []
        for _ in range(DEPTHS):
            hidden = model.backbone(
                input_embeds=model.embed_input_ids(fed[None]), hidden_states=hidden, cache_hidden=cache,
                attention_mask=mask, position_ids=torch.arange(rows)[None],
            )  # fmt: skip
            seen.append(hidden[0])
            logits.append(model.compute_logits(hidden)[0])
            fed = F.pad(fed[1:], (0, 1))
    mine, my_logits = ours(draft, wiring, states, tokens, DEPTHS)
    assert_same(mine, known(seen, tokens))
    assert_same(my_logits, known(logits, tokens), logits=True)


# ---- what both trainers leave out ----


@pytest.mark.parametrize("change", [{}, {"window": 5}, {"shift": 1}, {"shift": -1}, {"norm_output": True}])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_late_start_changes_nothing(change: dict, layers: int) -> None:
    draft, (states, tokens) = random_draft(layers), sample()
    wiring = CLASSIC.replace(**change)
    whole = ours(draft, wiring, states, tokens, DEPTHS)[0]
    hidden = combine(draft, wiring, states)
    late = list(depth_states(draft, wiring, hidden, tokens, DEPTHS, first=11))
    assert_same([h[: len(w) - 11] for h, w in zip(late, whole, strict=True)], [w[11:] for w in whole])


def test_shift_moves_the_states() -> None:
    draft, (states, tokens) = random_draft(), sample()
    moved = torch.cat([states[:1] * 0, states[:-1]])
    mine = ours(draft, CLASSIC.replace(shift=1), states, tokens, DEPTHS)[0]
    assert_same(mine, ours(draft, CLASSIC, moved, tokens, DEPTHS)[0])


@pytest.mark.parametrize("position", [0, 1, 13])
def test_a_trace_ends_with_what_forward_proposes(position: int) -> None:
    draft, (states, tokens) = random_draft(), sample()
    wiring = CLASSIC.replace(fc_norm=True, norm_output=True)
    chains = forward(draft, wiring, states, tokens, 3)
    stages = trace(draft, wiring, states, tokens, position, depths=3)
    assert [s.first[0] for s in stages if s.name == "proposed"] == chains.proposed[:, position].tolist()
    states_seen = [s[:, None] for s in ours(draft, wiring, states, tokens, 3)[0]]
    rms = [float(s[position].pow(2).mean().sqrt()) for s in states_seen]
    assert [s.rms for s in stages if s.name == "mlp"] == pytest.approx(rms, rel=1e-4)
    widths = {s.name: s.shape[0] for s in stages if s.depth == 1}
    assert (widths["captured states"], widths["concatenation"], widths["residual"]) == (3 * WIDTH, 2 * WIDTH, WIDTH)
    assert widths["q"] == HEADS * HEAD_DIM and widths["k"] == KV_HEADS * HEAD_DIM
    assert "fc" not in {s.name for s in stages if s.depth == 2}
