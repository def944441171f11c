"""SGLang's own MLA draft class on a CPU, without an engine around it.

Run as a script in an environment of SGLang's CPU path: ``mla_in_sglang.py FOLDER...``. Each folder holds a draft
and ``inputs.safetensors``; ``outputs.safetensors`` and the hook's ``passes`` are written beside them. Model,
weight loading, both ways of attention (full heads over a fresh prompt, absorbed latents while drafting) and rotary
embedding are SGLang's. Its attention kernels for latents need a GPU; ``Backend`` attends in their place.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3lib.engine.hook import specifications

DEPTHS = 3


class Backend:
    """Attention over one request; ``latents`` is its cache, and it is its own pool of slots."""

    prefill_attention_backend_str = decode_attention_backend_str = "torch_native"

    def __init__(self) -> None:
        self.token_to_kv_pool, self.latents = self, []

    def set_kv_buffer(self, layer: Any, where: Any, latent: Tensor, none: None) -> None:
        self.latents.append(latent.clone())

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: Any, save_kv_cache: bool = True, **_: Any
    ) -> Tensor:
        if save_kv_cache:  # absorbed: the latents are keys and values at once
            self.latents.append(k)
            k = torch.cat(self.latents)
            v = k[..., : layer.v_head_dim]
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        seen = torch.arange(len(k)) <= torch.arange(len(k) - len(q), len(k))[:, None]
        q, k, v = (x.expand(-1, q.shape[1], -1).transpose(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, seen, scale=layer.scaling).transpose(0, 1).flatten(1)


def chains(model: Any, states: Tensor, tokens: Tensor, starts: list[int]) -> dict[str, Tensor]:
    """``logits [starts, DEPTHS, V_d]`` and ``states [starts, DEPTHS, H]`` fed back, the true tokens fed."""
    from sglang.srt.layers.layer_boundary import get_attn_tp_context
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    def step(mode: Any, hidden: Tensor, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        batch = SimpleNamespace(
            forward_mode=mode, spec_info=SimpleNamespace(hidden_states=hidden), extend_prefix_lens_cpu=[0],
            mm_input_embeds=None, contains_mm_inputs=lambda: False, mha_one_shot=False, mha_return_lse=False,
            out_cache_loc=positions, out_cache_loc_is_physical=False, attn_cp_metadata=None, seq_lens=[len(ids)],
            global_num_token_non_padded_cpu=None,
        )  # fmt: skip
        with get_attn_tp_context().maybe_input_scattered(batch):
            normed, (fed_back,) = model.model(ids, positions, batch)
        return normed[-1:], fed_back[-1:]

    head = model.lm_head.weight[: model.config.draft_vocab_size]  # more rows are padding
    logits, fed = [], []
    for start in starts:
        with forward_context(ForwardContext(attn_backend=Backend())):
            hidden, mode, at = states[: start + 1], ForwardMode.EXTEND, torch.arange(start + 1)
            for _ in range(DEPTHS):
                normed, hidden = step(mode, hidden, tokens[at + 1], at)
                logits.append(F.linear(normed, head))
                fed.append(hidden)
                mode, at = ForwardMode.DECODE, at[-1:] + 1
    shape = (len(starts), DEPTHS)
    return {"logits": torch.cat(logits).unflatten(0, shape), "states": torch.cat(fed).unflatten(0, shape)}


def prepare(folder: str) -> None:
    """One process as its own tensor-parallel group."""
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.rotary_embedding.factory import get_rope
    from sglang.srt.models import deepseek_v2
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    how = {"device": "cpu", "attention_backend": "intel_amx", "dtype": "float32", "load_format": "dummy"}
    set_global_server_args_for_scheduler(ServerArgs(model_path=folder, skip_tokenizer_init=True, **how))
    meeting = f"file://{Path(folder).resolve()}/meeting"
    init_distributed_environment(1, 0, local_rank=0, distributed_init_method=meeting, backend="gloo")
    initialize_model_parallel(backend="gloo")
    get_parallel().override_permanently(tp_rank=0, attn_tp_rank=0)
    scaled = deepseek_v2.get_rope_wrapper

    def rope(*args: Any, device: str, **named: Any) -> Any:  # on "cpu" SGLang has scaled tables alone
        return scaled(*args, device=device, **named) if named["rope_scaling"] else get_rope(*args, **named)

    deepseek_v2.get_rope_wrapper = rope


@torch.inference_mode()
def main(folders: list[str]) -> None:
    from eagle3_sglang_cpu.plugin import activate

    activate()
    from sglang.srt.model_executor.hook_manager import register_forward_hooks
    from sglang.srt.models.kimi_k25_eagle3 import Eagle3DeepseekV2ForCausalLM
    from transformers import AutoConfig

    prepare(folders[0])
    for folder in map(Path, folders):
        model = Eagle3DeepseekV2ForCausalLM(AutoConfig.from_pretrained(folder)).eval()
        model.load_weights(load_file(folder / "model.safetensors").items())
        given = load_file(folder / "inputs.safetensors")
        model.model.embed_tokens.weight.data.copy_(given["embedding"])  # what set_embed does, but for CUDA calls
        register_forward_hooks(model, json.loads(specifications(folder / "passes")))
        found = chains(model, given["states"].flatten(1), given["tokens"], given["starts"].tolist())
        save_file(found, folder / "outputs.safetensors")


if __name__ == "__main__":
    main(sys.argv[1:])
