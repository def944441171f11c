"""The finished draft in both public trainers' own classes: accuracy per depth on held-out conversations.

    python evaluate.py TARGET DRAFT HELD_OUT.jsonl

Prints one JSON object. ``specforge acc``: right at this depth with the true tokens fed, of all positions in the
reply, against the target's choice among all words. ``speculators full_acc`` and ``cond_acc``: right at this and all
earlier depths, of all positions, and of those still right; against the target's choice among the draft's words.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

BOUNDARIES, DEPTHS = (0, 3, 16), 5


def shared_config(draft: Path) -> dict[str, Any]:
    """The draft's geometry in transformers' words."""
    config = json.loads((draft / "config.json").read_text())
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
             "vocab_size", "rms_norm_eps", "max_position_embeddings", "num_hidden_layers")  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    return {name: config[name] for name in names} | {"rope_parameters": rope}


def specforge_class(draft: Path, weights: dict[str, Tensor], embedding: Tensor) -> Any:
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3

    config = LlamaConfig(**shared_config(draft), draft_vocab_size=len(weights["d2t"]), pad_token_id=2)
    model = LlamaForCausalLMEagle3(config, attention_backend="sdpa").eval()
    model.load_state_dict(weights | {"embed_tokens.weight": embedding}, strict=True)
    return model


def speculators_class(draft: Path, weights: dict[str, Tensor], embedding: Tensor, norm: Tensor) -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    layer = LlamaConfig(**shared_config(draft))
    layer._attn_implementation = "eager"
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    proposals = [GreedyTokenProposalConfig(speculative_tokens=3)]
    served = SpeculatorsConfig(
        algorithm="eagle3", proposal_methods=proposals, default_proposal_method="greedy", verifier=verifier
    )
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=len(weights["d2t"]), norm_before_residual=False,
        norm_output=False, eagle_aux_hidden_state_layer_ids=list(BOUNDARIES), speculators_config=served,
    )  # fmt: skip
    model = Eagle3DraftModel(config).eval()
    named = {name.replace("midlayer.", "layers.0."): value for name, value in weights.items()}
    rows = torch.arange(len(weights["d2t"])) + weights["d2t"]
    own = {"embed_tokens.weight": embedding, "verifier_norm.weight": norm, "verifier_lm_head.weight": embedding[rows]}
    model.load_state_dict(named | own, strict=True)
    return model


def specforge_counts(model: Any, states: Tensor, ids: Tensor, truth: Tensor, prompt: int, counts: Counter) -> None:
    """Row t pairs state t with token t + 1; at depth d it proposes what the target chose after token t + d."""
    from specforge.modeling.draft.llama3_eagle import prepare_decoder_attention_mask

    rows, cache, fed = len(ids) - 1, [[], []], ids[1:]
    hidden = model.project_hidden_states(states[None, :-1])
    mask = prepare_decoder_attention_mask(torch.ones(1, rows, dtype=torch.bool), (1, rows), hidden, 0)
    for depth in range(1, DEPTHS + 1):
        hidden = model.backbone(
            input_embeds=model.embed_input_ids(fed[None]), hidden_states=hidden, cache_hidden=cache,
            attention_mask=mask, position_ids=torch.arange(rows)[None],
        )  # fmt: skip
        best = model.compute_logits(hidden)[0].argmax(-1)
        proposed = (best + model.d2t[best])[prompt - 1 : len(ids) - depth]
        right = proposed == truth[prompt - 1 + depth :][: len(proposed)]
        counts["specforge acc", depth] += int(right.sum())
        counts["specforge acc of", depth] += len(right)
        fed = F.pad(fed[1:], (0, 1))


def speculators_counts(model: Any, states: Tensor, last: Tensor, ids: Tensor, prompt: int, counts: Counter) -> None:
    from speculators.losses import resolve_loss_config

    mask = torch.zeros(1, len(ids) - 1, dtype=torch.bool)
    mask[:, prompt - 1 :] = True
    _, _, metrics = model(
        hidden_states=states[None, :-1], input_ids=ids[None, 1:], loss_mask=mask, ttt_steps=DEPTHS,
        document_ids=torch.zeros(1, len(ids) - 1, dtype=torch.long), verifier_last_hidden_states=last[None, 1:],
        loss_config=resolve_loss_config("ce", "eager"),
    )  # fmt: skip
    for depth in range(1, DEPTHS + 1):
        for name in ("full_acc", "cond_acc"):
            counts[f"speculators {name}", depth] += float(metrics[f"{name}_{depth - 1}_sum"])
            counts[f"speculators {name} of", depth] += float(metrics[f"{name}_{depth - 1}_total"])


@torch.no_grad()
@torch.compiler.set_stance("force_eager")  # both compile parts of themselves otherwise
def main(target: Path, draft: Path, held_out: Path) -> None:
    verifier = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    embedding = verifier.model.embed_tokens.weight.detach()
    weights = load_file(draft / "model.safetensors")
    weights = {name: w.float() if w.is_floating_point() else w for name, w in weights.items()}
    theirs = specforge_class(draft, weights, embedding)
    others = speculators_class(draft, weights, embedding, verifier.model.norm.weight.detach())
    counts: Counter = Counter()
    last: list[Tensor] = []
    verifier.model.norm.register_forward_pre_hook(lambda module, inputs: last.append(inputs[0][0]))
    for line in held_out.read_text().splitlines():
        sample = json.loads(line)
        ids, prompt = torch.tensor(sample["input_ids"]), sample["prompt_tokens"]
        out = verifier(ids[None], output_hidden_states=True)
        states = torch.cat([out.hidden_states[k][0] for k in BOUNDARIES], -1)
        specforge_counts(theirs, states, ids, out.logits[0].argmax(-1), prompt, counts)
        speculators_counts(others, states, last.pop(), ids, prompt, counts)
    names = ("specforge acc", "speculators full_acc", "speculators cond_acc")
    rates = {n: [counts[n, d] / counts[f"{n} of", d] for d in range(1, DEPTHS + 1)] for n in names}
    print(json.dumps(rates))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
