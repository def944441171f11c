"""Random targets and drafts, small enough to make in a test and real enough to be served."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

#: Each message on its own: a word for the role, then the content.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
WORDS = {"<unk>": 0, "<s>": 1, "</s>": 2, "user": 3, "assistant": 4}


def tiny_target(
    folder: str | Path,
    *,
    layers: int = 8,
    hidden: int = 64,
    vocab: int = 512,
    heads: int = 4,
    kv_heads: int = 2,
    block_scale: float = 0.04,
    seed: int = 0,
    dtype: str = "float32",
) -> LlamaForCausalLM:
    """Write a Llama target with random weights and a tokenizer of the words ``w5``, ``w6``, ...

    The default has 8 layers because SGLang's default capture ids do not fit fewer.
    ``block_scale`` is the standard deviation of the weights within blocks: the smaller, the more the next
    token is a function of the last one, and the better ``tiny_draft`` predicts it.

    Returns:
        The model in evaluation mode, as saved.
    """
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype=dtype,
    )
    draw = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                scale = block_scale if ".layers." in name else 0.5
                weight.copy_(torch.randn(weight.shape, generator=draw) * scale)
    model.save_pretrained(folder)
    _tokenizer(vocab).save_pretrained(folder)
    return model


def tiny_draft(
    folder: str | Path,
    target: LlamaForCausalLM,
    *,
    draft_vocab: int = 448,
    layer_ids: tuple[int, ...] | None = None,
    noise: float = 0.01,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Write an EAGLE-3 draft in SGLang's dialect that is right about some tokens of ``tiny_target``.

    Its attention replaces the state by the embedding of the newest token, at each depth, and its head is the
    target's: it predicts what the target would say to that token alone. ``fc`` adds the captured states up to
    about the size that the attention takes away; ``noise`` disturbs all of it. The draft vocabulary is spread
    evenly over the target's.

    Args:
        layer_ids: ``eagle_aux_hidden_state_layer_ids`` as SGLang spells them for Llama (id i is boundary
            i + 1); ``None`` leaves them out, so that the engine's default applies.

    Returns:
        The tensors as saved, by checkpoint name.
    """
    base = target.config
    hidden, vocab, dtype = base.hidden_size, base.vocab_size, target.dtype
    slots = len(layer_ids) if layer_ids is not None else 3
    draw = torch.Generator().manual_seed(seed + 1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw) * noise

    eye, zero, one = torch.eye(hidden), torch.zeros(hidden, hidden), torch.ones(hidden)
    embedding, state = torch.cat([eye, zero], 1), torch.cat([zero, eye], 1)  # [hidden, 2 * hidden]
    keep = torch.arange(draft_vocab) * vocab // draft_vocab  # [draft_vocab] target ids
    in_draft = torch.zeros(vocab, dtype=torch.bool)
    in_draft[keep] = True
    weights = {
        "fc.weight": torch.cat([4 / slots * eye] * slots, 1) + random(hidden, slots * hidden),
        "midlayer.self_attn.q_proj.weight": 4 * embedding + random(hidden, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": 4 * embedding + random(hidden, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": embedding - state + random(hidden, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": 2 * eye + random(hidden, hidden),
        "midlayer.mlp.gate_proj.weight": random(2 * hidden, hidden),
        "midlayer.mlp.up_proj.weight": random(2 * hidden, hidden),
        "midlayer.mlp.down_proj.weight": random(hidden, 2 * hidden),
        "midlayer.hidden_norm.weight": one,
        "midlayer.input_layernorm.weight": one,
        "midlayer.post_attention_layernorm.weight": one,
        "norm.weight": one,
        "lm_head.weight": target.lm_head.weight.detach()[keep].float() + random(draft_vocab, hidden),
    }
    weights = {name: weight.to(dtype).clone().contiguous() for name, weight in weights.items()}
    weights |= {"d2t": keep - torch.arange(draft_vocab), "t2d": in_draft}

    config = base.to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "num_key_value_heads": base.num_attention_heads,
        "draft_vocab_size": draft_vocab,
    }
    if layer_ids is not None:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(layer_ids)}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return weights


def _tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    words = WORDS | {f"w{i}": i for i in range(len(WORDS), vocab)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=CHAT_TEMPLATE
    )
