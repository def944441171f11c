"""The forward passes of two trainers on the same weights and tokens, without loss or teacher.

Both compute what a draft's logits need and no more: states, logits over the draft vocabulary, their argmax. The
weights are ours, shared, not copied.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle3lib.maths.draft import Draft
from eagle3lib.maths.wiring import Wiring

#: ``(states [T, K * H], tokens [T], depths)`` to the argmax ``[T - 1]`` of each depth.
Forward = Callable[[Tensor, Tensor, int], list[Tensor]]


def speculators(draft: Draft, wiring: Wiring, attention: str) -> Forward:
    """``Eagle3DraftModel.forward`` of speculators; ``attention``: sdpa, eager or simple_flex_attention."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    config = _config(draft, wiring)
    config._attn_implementation = attention
    proposal = GreedyTokenProposalConfig(speculative_tokens=1)
    model = Eagle3DraftModel(Eagle3SpeculatorConfig(
        transformer_layer_config=config, draft_vocab_size=draft.draft_vocab, norm_before_residual=False,
        eagle_aux_hidden_state_layer_ids=list(wiring.boundaries),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3", verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
            proposal_methods=[proposal], default_proposal_method="greedy",
        ),
    ))  # fmt: skip
    unused = {"verifier_norm.weight": draft.norm, "verifier_lm_head.weight": draft.lm_head}
    _share(model, _weights(draft, "layers.0.") | unused, draft)

    def run(states: Tensor, tokens: Tensor, depths: int) -> list[Tensor]:
        rows = torch.zeros(1, len(tokens) - 1, dtype=torch.long)
        return model(hidden_states=states[None, :-1], input_ids=tokens[None, 1:], document_ids=rows, ttt_steps=depths)

    return run


def specforge(draft: Draft, wiring: Wiring, attention: str) -> Forward:
    """``LlamaForCausalLMEagle3`` of SpecForge, as its trainer drives it; ``attention``: sdpa or flex_attention."""
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3, prepare_decoder_attention_mask
    from transformers import DynamicCache

    model = LlamaForCausalLMEagle3(_config(draft, wiring), attention_backend=attention)
    _share(model, _weights(draft, "midlayer."), draft)

    def run(states: Tensor, tokens: Tensor, depths: int) -> list[Tensor]:
        rows, fed, best = len(tokens) - 1, tokens[None, 1:], []
        hidden = model.project_hidden_states(states[None, :-1])
        mask, past, cache = torch.ones(1, rows, dtype=torch.bool), DynamicCache(), None
        if attention == "sdpa":
            mask, past, cache = prepare_decoder_attention_mask(mask, (1, rows), hidden, 0), None, [[], []]
        for _ in range(depths):
            hidden = model.backbone(
                input_embeds=model.embed_input_ids(fed), hidden_states=hidden, cache_hidden=cache,
                attention_mask=mask, position_ids=torch.arange(rows)[None], past_key_values=past,
            )  # fmt: skip
            best.append(model.compute_logits(hidden).argmax(-1))
            fed = F.pad(fed[:, 1:], (0, 1))
        return best

    return run


def _config(draft: Draft, wiring: Wiring):  # noqa: ANN202
    from transformers import LlamaConfig

    (layer,), dim = draft.layers, draft.head_dim
    return LlamaConfig(
        vocab_size=draft.own_embedding.shape[0], hidden_size=draft.width, intermediate_size=len(layer.gate_proj),
        num_hidden_layers=1, num_attention_heads=len(layer.q_proj.weight) // dim,
        num_key_value_heads=len(layer.k_proj.weight) // dim, head_dim=dim, rms_norm_eps=draft.eps,
        max_position_embeddings=draft.max_positions, draft_vocab_size=draft.draft_vocab, pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": wiring.rope_theta},
    )  # fmt: skip


def _weights(draft: Draft, first_layer: str) -> dict[str, Tensor]:
    """By the names that trainers use."""
    (layer,) = draft.layers
    norms = {"input_layernorm": layer.input_layernorm, "hidden_norm": layer.hidden_norm}
    norms["post_attention_layernorm"] = layer.post_attention_layernorm
    mlp = {f"mlp.{name}_proj": getattr(layer, f"{name}_proj") for name in ("gate", "up", "down")}
    attention = {f"self_attn.{name}_proj": getattr(layer, f"{name}_proj").weight for name in "qkvo"}
    own = {f"{first_layer}{name}.weight": value for name, value in (norms | mlp | attention).items()}
    return own | {
        "fc.weight": draft.fc.weight, "norm.weight": draft.norm, "lm_head.weight": draft.lm_head,
        "embed_tokens.weight": draft.own_embedding, "d2t": draft.d2t,
        "t2d": torch.ones(draft.own_embedding.shape[0], dtype=torch.bool),
    }  # fmt: skip


def _share(model: nn.Module, weights: dict[str, Tensor], draft: Draft) -> None:
    model.to(draft.norm.dtype).load_state_dict(weights, strict=True, assign=True)
    model.eval().requires_grad_(False)
