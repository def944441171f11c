"""The weights of a draft, under the names of transformers, whatever the checkpoint calls them.

Which embedding, head and vocabulary map are read is for the wiring to say: ``embed``, ``head_weight``, ``target_ids``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.device import resolve_device
from eagle3lib.maths.mla import MLA
from eagle3lib.maths.wiring import Wiring
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.draft_config import DraftConfig, LatentShape

#: Other names of the same tensors (SGLang ``LlamaForCausalLMEagle3.load_weights``, and SpecForge's exports).
ALIASES = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}

Weight = TypeVar("Weight")


@dataclass(frozen=True)
class Linear:
    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Layer:
    """One decoder layer. q, k and v of the first layer read ``2H``, all else reads ``H``.

    An MLA layer has ``mla`` in the place of q, k and v.
    """

    o_proj: Linear  # [H, heads * value_dim]
    gate_proj: Tensor  # [I, H]
    up_proj: Tensor  # [I, H]
    down_proj: Tensor  # [H, I]
    post_attention_layernorm: Tensor  # [H]
    input_layernorm: Tensor | None  # [H], of the embedding in the first layer
    hidden_norm: Tensor | None  # [H], of the hidden state
    q_proj: Linear | None = None  # [heads * D, 2H or H]
    k_proj: Linear | None = None  # [kv_heads * D, 2H or H]
    v_proj: Linear | None = None
    q_norm: Tensor | None = None  # [D]
    k_norm: Tensor | None = None
    mla: MLA | None = None

    @property
    def value_dim(self) -> int | None:
        """How much of a head's output the output projection reads; ``None``: all of it."""
        return None if self.mla is None else self.mla.shape.value


@dataclass(frozen=True)
class Draft:
    """A draft's weights and the numbers needed to read them; how it is fed is a ``Wiring``."""

    fc: Linear
    input_norm: Tensor | None  # [K * H_t], for norm_before_fc
    fc_norms: tuple[Tensor, ...]  # K of [H_t], for fc_norm
    layers: tuple[Layer, ...]
    norm: Tensor  # [H]
    lm_head: Tensor | None  # [V_d, H]
    own_embedding: Tensor | None  # [V_t, H]
    target_embedding: Tensor | None  # [V_t, H_t]
    d2t: Tensor | None  # [V_d] int64
    num_aux_hidden_states: int
    head_dim: int
    eps: float
    max_positions: int
    target_head: Tensor | None = None  # [V_t, H_t], where the config asks for no vocabulary of the draft's own

    @property
    def width(self) -> int:
        return self.norm.shape[0]

    @property
    def draft_vocab(self) -> int | None:
        """Rows of the draft's own head, or of its map where it has no head."""
        rows = self.lm_head if self.lm_head is not None else self.d2t
        return None if rows is None else rows.shape[0]

    @classmethod
    def load(
        cls, folder: str | Path, target_embedding: Tensor | None, dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu", target_head: Tensor | None = None,
    ) -> Draft:  # fmt: skip
        """The draft in ``folder``, in any dialect of names and config.

        ``target_embedding`` and ``target_head``, ``[V_t, H_t]``, are what engines give the draft instead of its
        own: the head to a draft whose config has no ``draft_vocab_size``.

        Raises:
            InputError: a tensor is missing or has another shape than the config says, or the draft has a
                feature that this library does not compute.
        """
        config = DraftConfig.open(folder)
        where = Path(folder).name
        tensors = _Tensors(Checkpoint.open(folder), dtype, resolve_device(device))
        latent = config.latent if "layers.0.self_attn.kv_b_proj.weight" in tensors.names else None
        width, head_dim = config.hidden_size, config.head_dim if latent is None else latent.nope + latent.rope
        if not (width and config.heads and config.kv_heads and head_dim):
            raise InputError(
                f"{where}: config.json", "no hidden_size, num_attention_heads or sizes of a head",
                "the draft's geometry", "MLA needs kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim",
            )  # fmt: skip
        fc = tensors.linear("fc", width, None)
        target_width = config.target_hidden_size or (width if target_embedding is None else target_embedding.shape[1])
        aux_states, rest = divmod(fc.weight.shape[1], target_width)
        if rest or not aux_states:
            raise InputError(f"{where}: fc.weight", list(fc.weight.shape), f"a multiple of {target_width} columns")
        if config.draft_vocab_size is not None:
            target_head = None
        return cls(
            fc=fc,
            input_norm=tensors.get("input_norm.weight", (aux_states * target_width,)),
            fc_norms=tensors.family("fc_norm.{}.weight", aux_states, (target_width,)),
            layers=tuple(_layer(tensors, i, config, latent) for i in range(config.layers)),
            norm=tensors.need("norm.weight", (width,)),
            lm_head=tensors.get("lm_head.weight", (None, width)),
            own_embedding=tensors.get("embed_tokens.weight", (None, width), cast=False),
            target_embedding=None if target_embedding is None else target_embedding.to(device),
            d2t=tensors.get("d2t", (None,)),
            num_aux_hidden_states=aux_states,
            head_dim=head_dim,
            eps=config.rms_norm_eps,
            max_positions=config.max_positions or 2048,
            target_head=None if target_head is None else target_head.to(device),
        )


def head_weight(draft: Draft, wiring: Wiring) -> Tensor:
    """``[V_d, H]``: the draft's own head, the embedding's first rows where they are tied, or the target's."""
    if wiring.head == "tied":
        return embedding_table(draft, wiring)[: draft.draft_vocab]
    if wiring.head == "target":
        return _as_wide(require(draft.target_head, "head", "head of the target"), draft, "head")
    return require(draft.lm_head, "the head", "lm_head.weight")


def target_ids(draft: Draft, wiring: Wiring) -> Tensor | None:
    """The target id of each draft id, ``[V_d]``; ``None`` where they are the same.

    Raises:
        InputError: the map has not one entry for each row of the head.
    """
    if draft.d2t is None:
        return None
    if len(draft.d2t) != (rows := len(head_weight(draft, wiring))):
        cure = "export head and d2t from one checkpoint"
        raise InputError("d2t", f"{len(draft.d2t)} entries", f"{rows}, one for each row of the head", cure)
    if wiring.d2t == "absolute":
        return draft.d2t
    return draft.d2t + torch.arange(len(draft.d2t), device=draft.d2t.device)


def embed(draft: Draft, wiring: Wiring, tokens: Tensor) -> Tensor:
    """``[T, H]`` in the draft's dtype: rows are cast after they are taken, since the table may be of another."""
    return F.embedding(tokens, embedding_table(draft, wiring)).to(draft.norm.dtype)


def embedding_table(draft: Draft, wiring: Wiring) -> Tensor:
    """``[V_t, H]``: the draft's own embedding or the target's."""
    if wiring.embedding == "own":
        return require(draft.own_embedding, "embedding", "embed_tokens.weight")
    return _as_wide(require(draft.target_embedding, "embedding", "the target's embedding"), draft, "embedding")


def _as_wide(table: Tensor, draft: Draft, what: str) -> Tensor:
    """The target's tensor; a draft of another width cannot read it."""
    if table.shape[1] != draft.width:
        found, cure = f"the target's, {table.shape[1]} wide", "a draft of another width than its target reads its own"
        raise InputError(what, found, f"{draft.width} wide, as the draft", cure)
    return table


def require(weight: Weight | None, switch: str, name: str) -> Weight:
    """The weight that a switch of the wiring needs; raises ``InputError`` where the draft lacks it."""
    if weight is None or (isinstance(weight, tuple) and not weight):
        raise InputError(f"wiring {switch}", f"no {name} in the draft", f"{name}, which this switch needs")
    return weight


class _Tensors:
    """A checkpoint's tensors by our names, each checked against the shape it must have."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self.checkpoint, self.dtype, self.device = checkpoint, dtype, device
        self.where = checkpoint.folder.name
        self.names = {_canonical(name): name for name in (*checkpoint.tensors, *checkpoint.absent)}

    def get(self, name: str, shape: tuple[int | None, ...], cast: bool = True) -> Tensor | None:
        """Integers come as int64, all else in the draft's dtype if ``cast``; ``None`` in ``shape`` fits any size."""
        if name not in self.names:
            return None
        found = self.checkpoint.info(self.names[name]).shape
        if len(found) != len(shape) or any(n not in (None, m) for n, m in zip(shape, found, strict=True)):
            expected = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
            raise InputError(f"{self.where}: {self.names[name]}", list(found), expected)
        tensor = self.checkpoint.tensor(self.names[name])
        if tensor.is_floating_point() and not _finite(tensor):
            cure = "export or train the draft again; such weights predict nothing"
            raise InputError(f"{self.where}: {self.names[name]}", "NaN or Inf", "finite weights", cure)
        dtype = torch.int64 if not tensor.is_floating_point() else self.dtype if cast else tensor.dtype
        return tensor.to(self.device, dtype)

    def need(self, name: str, shape: tuple[int | None, ...]) -> Tensor:
        tensor = self.get(name, shape)
        if tensor is None:
            raise InputError(f"{self.where}: {name}", "no such tensor", "a tensor of this name in the checkpoint")
        return tensor

    def linear(self, name: str, out: int, width: int | None) -> Linear:
        return Linear(self.need(f"{name}.weight", (out, width)), self.get(f"{name}.bias", (out,)))

    def family(self, pattern: str, count: int, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """All ``count`` tensors of a pattern, or none of them."""
        if not any(pattern.format(i) in self.names for i in range(count)):
            return ()
        return tuple(self.need(pattern.format(i), shape) for i in range(count))


def _layer(tensors: _Tensors, index: int, config: DraftConfig, latent: LatentShape | None) -> Layer:
    at, width = f"layers.{index}.", config.hidden_size
    attention = _attention if latent is None else _mla
    return Layer(
        **attention(tensors, f"{at}self_attn.", 2 * width if index == 0 else width, config),
        gate_proj=tensors.need(f"{at}mlp.gate_proj.weight", (None, width)),
        up_proj=tensors.need(f"{at}mlp.up_proj.weight", (None, width)),
        down_proj=tensors.need(f"{at}mlp.down_proj.weight", (width, None)),
        post_attention_layernorm=tensors.need(f"{at}post_attention_layernorm.weight", (width,)),
        input_layernorm=tensors.get(f"{at}input_layernorm.weight", (width,)),
        hidden_norm=tensors.get(f"{at}hidden_norm.weight", (width,)),
    )


def _attention(tensors: _Tensors, at: str, width: int, config: DraftConfig) -> dict[str, Any]:
    q_out, kv_out = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "q_proj": tensors.linear(f"{at}q_proj", q_out, width),
        "k_proj": tensors.linear(f"{at}k_proj", kv_out, width),
        "v_proj": tensors.linear(f"{at}v_proj", kv_out, width),
        "o_proj": tensors.linear(f"{at}o_proj", config.hidden_size, q_out),
        "q_norm": tensors.get(f"{at}q_norm.weight", (None,)),
        "k_norm": tensors.get(f"{at}k_norm.weight", (None,)),
    }


def _mla(tensors: _Tensors, at: str, width: int, config: DraftConfig) -> dict[str, Any]:
    """q_a_proj and kv_a_proj_with_mqa come apart or, as engines hold them, as one; SGLang has no biases here."""
    g, heads = config.latent, config.heads
    q_out, kv_a_out = heads * (g.nope + g.rope), g.kv_rank + g.rope

    def need(name: str, *shape: int) -> Tensor:
        return tensors.need(f"{at}{name}.weight", shape)

    low_rank = g.q_rank is not None
    fused = tensors.get(f"{at}fused_qkv_a_proj_with_mqa.weight", (g.q_rank + kv_a_out, width)) if low_rank else None
    if fused is not None:
        q_a, kv_a = fused.split([g.q_rank, kv_a_out])
    else:
        q_a = need("q_a_proj", g.q_rank, width) if low_rank else None
        kv_a = need("kv_a_proj_with_mqa", kv_a_out, width)
    mla = MLA(
        q_a_proj=q_a,
        q_a_layernorm=need("q_a_layernorm", g.q_rank) if low_rank else None,
        q_b_proj=need("q_b_proj", q_out, g.q_rank) if low_rank else need("q_proj", q_out, width),
        kv_a_proj_with_mqa=kv_a,
        kv_a_layernorm=need("kv_a_layernorm", g.kv_rank),
        kv_b_proj=need("kv_b_proj", heads * (g.nope + g.value), g.kv_rank),
        shape=g,
    )
    return {"o_proj": Linear(need("o_proj", config.hidden_size, heads * g.value)), "mla": mla}


def _finite(tensor: Tensor) -> bool:
    """Part by part: a whole embedding's flags, and its copy in float32, would be the peak of memory."""
    return all(bool(torch.isfinite(part.float()).all()) for part in tensor.split(256))


def _canonical(name: str) -> str:
    for alias, ours in ALIASES.items():
        name = name.replace(alias, ours)
    return name.removeprefix("model.")
