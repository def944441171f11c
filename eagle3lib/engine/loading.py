"""Which tensors of a draft SGLang would load, drop or miss: its ``load_weights``, without a model.

Source: sgl-project/sglang srt/models/llama_eagle3.py and kimi_k25_eagle3.py ``load_weights`` (0.5.23),
llama_eagle3.py (0.5.9). The Llama loaders say nothing about names they do not know and about parameters
that stay at their initial values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from eagle3lib.maths.draft_weights import ALIASES
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.draft_config import SGLANG_AUX_KEY, DraftConfig, LatentShape

Shape = tuple[int, ...]
#: The places of each norm's switch that SGLang 0.5.23 reads; 0.5.9 reads none.
NORM_PLACES = {
    "norm_before_fc": ("eagle_config.norm_before_fc", "norm_before_fc"),
    "fc_norm": ("fc_norm", "use_aux_norm"),
    "norm_output": ("norm_output",),
}
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}
_PACKED = re.compile(
    r"\.(weight|qweight|weight_packed|weight_scale\w*|weight_zero_point|weight_shape|qzeros|"
    r"scales|g_idx|input_scale|weight_g_idx)$"
)


@dataclass(frozen=True)
class Loading:
    """``unread`` are file tensors that no parameter takes; ``missing`` parameters keep their initial values;
    ``misshapen`` are (tensor, shape in the file, shape in the engine); ``d2t`` and ``t2d`` name the file's maps."""

    unread: tuple[str, ...]
    missing: tuple[str, ...]
    misshapen: tuple[tuple[str, Shape, Shape], ...]
    d2t: str | None
    t2d: str | None


def aux_count(draft: DraftConfig, version: str) -> int:
    """The number of states that the engine sizes ``fc`` for."""
    nested = draft.aux_found.get(SGLANG_AUX_KEY)
    if draft.mla:
        top = draft.aux_found.get("eagle_aux_hidden_state_layer_ids")
        return len(nested if nested is not None else top if top is not None else (0, 0, 0))
    if version == "0.5.9":
        return 3
    return draft.num_aux or len(nested or ()) or 3


def reads_norm(draft: DraftConfig, name: str, version: str) -> bool:
    """True when the engine reads the switch of this norm where the config has it."""
    known = version != "0.5.9" and not (draft.mla and name == "norm_before_fc")
    return known and draft.norm_places.get(name) in NORM_PLACES[name]


def parameters(draft: DraftConfig, version: str) -> dict[str, Shape]:
    """Every parameter that the engine's draft has, unfused, with its shape. Needs the draft's geometry."""
    h, inner, vocab = draft.hidden_size or 0, draft.intermediate_size or 0, draft.vocab_size or 0
    states, source = aux_count(draft, version), draft.target_hidden_size or h
    found: dict[str, Shape] = {"model.fc": (h, source * states), "model.embed_tokens": (vocab, h), "model.norm": (h,)}
    if draft.bias:
        found["model.fc.bias"] = (h,)
    if draft.norm_before_fc and reads_norm(draft, "norm_before_fc", version):
        found["model.input_norm"] = (source * states,)
    if draft.fc_norm and reads_norm(draft, "fc_norm", version):
        found |= {f"model.fc_norm.{i}": (source,) for i in range(min(states, 64))}
    if not draft.tied:
        found["lm_head"] = (draft.draft_vocab or 0, h)
    mlp = {"gate_proj": (inner, h), "up_proj": (inner, h), "down_proj": (h, inner)}
    for i in range(min(draft.layers, 64)):
        layer = "model.midlayer" if draft.mla or version == "0.5.9" else f"model.layers.{i}"
        attention = _mla(draft) if draft.mla else _attention(draft, 2 * h if i == 0 else h)
        found |= {f"{layer}.{norm}": (h,) for norm in ("input_layernorm", "post_attention_layernorm", "hidden_norm")}
        found |= {f"{layer}.mlp.{name}": shape for name, shape in mlp.items()}
        found |= {f"{layer}.self_attn.{name}": shape for name, shape in attention.items()}
    return {name if name.endswith(".bias") else f"{name}.weight": shape for name, shape in found.items()}


def _attention(draft: DraftConfig, width: int) -> dict[str, Shape]:
    h, dim = draft.hidden_size or 0, draft.head_dim or 0
    q, kv = (draft.heads or 0) * dim, (draft.kv_heads or 0) * dim
    found: dict[str, Shape] = {"q_proj": (q, width), "k_proj": (kv, width), "v_proj": (kv, width), "o_proj": (h, q)}
    return found | ({"o_proj.bias": (h,)} if draft.attention_bias or draft.bias else {})


def _mla(draft: DraftConfig) -> dict[str, Shape]:
    h, heads, g = draft.hidden_size or 0, draft.heads or 0, draft.latent or LatentShape(0, 0, 0, 0, 0, True)
    q_out = heads * (g.nope + g.rope)
    q: dict[str, Shape] = {"q_proj": (q_out, 2 * h)}  # SGLang refuses to start; the weights are not at fault
    if g.q_rank is not None:
        q = {"q_a_proj": (g.q_rank, 2 * h), "q_a_layernorm": (g.q_rank,), "q_b_proj": (q_out, g.q_rank)}
    return q | {
        "kv_a_proj_with_mqa": (g.kv_rank + g.rope, 2 * h),
        "kv_a_layernorm": (g.kv_rank,),
        "kv_b_proj": (heads * (g.nope + g.value), g.kv_rank),
        "o_proj": (h, heads * g.value),
    }


def engine_name(name: str, known: Mapping[str, Shape], draft: DraftConfig, version: str) -> str | None:
    """The parameter that a file tensor ends in, ``d2t``, ``t2d``, or None when the engine drops it."""
    if draft.mla:
        last = name.rsplit(".", 1)[-1]
        if last in ("d2t", "t2d"):
            return last
        if "fused_qkv_a_proj_with_mqa" in name:
            return None  # taken for one of the pair that it is fused from, and dropped as the other never comes
        name = re.sub(r"^layers\.0\.", "midlayer.", name)
        tries = [name if name.startswith("lm_head.") else f"model.{name}"]
    else:
        for old, new in ALIASES.items() if version != "0.5.9" else ():
            name = name.replace(old, new)
        if "d2t" in name or "t2d" in name:
            return "d2t" if "d2t" in name else "t2d"
        tries = [name, f"model.{name}"]
    return next((t for t in tries if all(part in known for part in _unfused(t))), None)


def _unfused(name: str) -> list[str]:
    """The names of the parameters that a fused one holds; of any other, its own."""
    fused = next((fused for fused in _FUSED if f".{fused}." in name), None)
    return [name] if fused is None else [name.replace(f".{fused}.", f".{part}.") for part in _FUSED[fused]]


def load(draft: DraftConfig, checkpoint: Checkpoint, version: str) -> Loading:
    """Take the file's tensors one by one, as the engine's loader does."""
    known = parameters(draft, version)
    read: dict[str, str] = {}
    unread, misshapen = [], []
    for name, info in checkpoint.tensors.items():
        where = engine_name(name, known, draft, version)
        if where is None and draft.quantization:  # packed weights and their scales: shapes are the method's own
            where = _quantized_weight(name, known, draft, version)
        if where is None:
            unread.append(name)
            continue
        parts = _unfused(where)
        read |= dict.fromkeys(parts, name)
        if where not in ("d2t", "t2d") and not draft.quantization:
            shape = (sum(known[part][0] for part in parts), *known[parts[0]][1:])
            if info.shape != shape:
                misshapen.append((name, info.shape, shape))
    spared = {"model.embed_tokens.weight"} if draft.shares_embedding else set()
    if draft.draft_vocab_size is None:
        spared.add("lm_head.weight")  # the target's head is taken
    missing = tuple(name for name in known if name not in read and name not in spared)
    return Loading(tuple(unread), missing, tuple(misshapen), read.get("d2t"), read.get("t2d"))


def _quantized_weight(name: str, known: Mapping[str, Shape], draft: DraftConfig, version: str) -> str | None:
    """The weight that a packed tensor or scale belongs to; ``fc`` is never quantized."""
    plain = _PACKED.sub(".weight", name)
    where = engine_name(plain, known, draft, version) if plain != name else None
    return None if where == "model.fc.weight" and not draft.mla else where
