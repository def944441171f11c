"""A small sound pair of target and draft as files, to be broken in one place by each test."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from eagle3lib.findings.config_rules import inspect
from eagle3lib.findings.inspection import Inspection

H, VOCAB, SMALL, LAYERS = 64, 256, 48, 12
LAUNCH = (
    "python -m sglang.launch_server --model-path target --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path draft --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4"
)


class Pair:
    """Configs and tensors of both models, and a launch line; ``write`` puts them into folders."""

    def __init__(self) -> None:
        make = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=make)

        self.launch, self.engine, self.longest_prompt = LAUNCH, "sglang==0.5.23", 0
        self.target: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": LAYERS,
            "hidden_size": H,
            "vocab_size": VOCAB,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        }
        self.draft: dict[str, Any] = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_size": H,
            "intermediate_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": VOCAB,
            "draft_vocab_size": SMALL,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True},
        }
        embed, head = random(VOCAB, H), random(VOCAB, H)
        self.target_weights = {"model.embed_tokens.weight": embed, "lm_head.weight": head}
        kept = torch.randperm(VOCAB, generator=make)[:SMALL]  # ordered by frequency, as ModelOpt leaves it
        self.weights = {
            "fc.weight": random(H, 3 * H),
            "norm.weight": random(H),
            "lm_head.weight": head[kept] + 0.1 * random(SMALL, H),
            "midlayer.hidden_norm.weight": random(H),
            "midlayer.input_layernorm.weight": random(H),
            "midlayer.post_attention_layernorm.weight": random(H),
            "midlayer.self_attn.q_proj.weight": random(64, 2 * H),
            "midlayer.self_attn.k_proj.weight": random(32, 2 * H),
            "midlayer.self_attn.v_proj.weight": random(32, 2 * H),
            "midlayer.self_attn.o_proj.weight": random(H, 64),
            "midlayer.mlp.gate_proj.weight": random(32, H),
            "midlayer.mlp.up_proj.weight": random(32, H),
            "midlayer.mlp.down_proj.weight": random(H, 32),
            "d2t": kept - torch.arange(SMALL),
            "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, kept, True),
        }

    def rename(self, old: str, new: str) -> None:
        """Rename the tensors whose names hold ``old``."""
        self.weights = {name.replace(old, new): value for name, value in self.weights.items()}

    def ids(self, *ids: int) -> None:
        """Put ids where SGLang reads them."""
        self.draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(ids)

    def speculators(self, **fields: Any) -> None:
        """The same draft as speculators writes it: nested geometry, ids as boundaries at top level."""
        d = self.draft
        top = {
            "draft_vocab_size": SMALL,
            "norm_before_residual": False,
            "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
        }
        inner = {k: v for k, v in d.items() if k not in (*top, "eagle_config", "tie_word_embeddings", "torch_dtype")}
        self.draft = {**top, "transformer_layer_config": inner, **fields}
        self.rename("midlayer.", "layers.0.")

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both models; returns the folders of draft and target."""
        for name, config, weights in (
            ("draft", self.draft, self.weights),
            ("target", self.target, self.target_weights),
        ):
            (folder / name).mkdir(exist_ok=True, parents=True)
            (folder / name / "config.json").write_text(json.dumps(config))
            if weights:
                save_file({k: v.contiguous().clone() for k, v in weights.items()}, folder / name / "model.safetensors")
        return folder / "draft", folder / "target"


@cache
def inspected(layers: int = LAYERS) -> Inspection:
    """What the files of a sound pair say, its target ``layers`` blocks deep."""
    pair = Pair()
    pair.target["num_hidden_layers"] = layers
    with TemporaryDirectory() as folder:
        return inspect(*pair.write(Path(folder)), pair.launch, pair.engine)
