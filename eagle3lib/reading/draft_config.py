"""A draft's config.json, from any trainer, as one frozen object that lists what it assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from eagle3lib.errors import InputError
from eagle3lib.reading.fields import dig, first_name, mapping, number
from eagle3lib.reading.files import read_object
from eagle3lib.reading.rope import Rope, read_rope

Dialect = Literal["sglang", "eagle", "speculators", "modelopt", "angelslim", "vllm"]
#: Fields that only ModelOpt writes into ``eagle_config``.
_MODELOPT = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm", "next_layer_regular",
             "eagle_decoder_type")  # fmt: skip
#: Where aux layer ids may be found, in order of preference; findings show the dotted path.
AUX_PLACES = (
    "eagle_config.eagle_aux_hidden_state_layer_ids",
    "eagle_aux_hidden_state_layer_ids",
    "aux_hidden_states_layer_ids",
    "eagle_config.aux_hidden_states_layer_ids",
    "eagle_config.layer_ids",
    "transformer_layer_config.eagle_aux_hidden_state_layer_ids",
)
#: The one place from which SGLang captures (srt/model_executor/model_runner_components/
#: spec_aux_hidden_state.py ``_resolve_eagle_aux_hidden_state``).
SGLANG_AUX_KEY = AUX_PLACES[0]


@dataclass(frozen=True)
class LatentShape:
    """The geometry of multi-head latent attention (DeepSeek, Kimi): ranks of the latents (``q_rank`` None: queries
    have none) and the parts of a head, in values.

    ``interleaved``: rotary pairs lie side by side, the default of SGLang and transformers.
    """

    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    interleaved: bool


def _count(*names: str, least: int = 1) -> Any:
    """A field for a whole number: the first of ``names`` that is not null."""
    return field(metadata={"names": names, "least": least})


def _switch(*places: str, absent: bool | None = None) -> Any:
    """A field for true or false: the first of the dotted ``places`` that is not null; SGLang's own comes first."""
    return field(metadata={"places": places, "absent": absent})


@dataclass(frozen=True)
class DraftConfig:
    """A draft's config, as one object. None means: not given. Geometry counts heads and values.

    Norm flags are None where absent; ``norm_places`` gives the dotted path of each flag found.
    ``assumed`` lists every value that was filled in, in words.
    """

    raw: Mapping[str, Any]
    dialect: Dialect
    assumed: tuple[str, ...]
    duplicates: tuple[str, ...]
    architecture: str
    model_type: str
    hidden_size: int | None = _count("hidden_size")
    intermediate_size: int | None = _count("intermediate_size")
    layers: int = _count("num_hidden_layers", least=0)
    heads: int | None = _count("num_attention_heads")
    kv_heads: int | None = _count("num_key_value_heads")
    head_dim: int | None = _count("head_dim")
    latent: LatentShape | None
    rms_norm_eps: float
    vocab_size: int | None = _count("vocab_size")
    draft_vocab_size: int | None = _count("draft_vocab_size", "truncated_vocab_size")
    target_hidden_size: int | None = _count("target_hidden_size")
    num_aux: int | None = _count("num_aux_hidden_states")
    use_aux: bool
    aux_ids: tuple[int, ...] | None
    aux_place: str
    aux_found: Mapping[str, tuple[int, ...]]
    norm_before_residual: bool | None = _switch("norm_before_residual", "eagle_config.norm_before_residual")
    norm_before_fc: bool | None = _switch(
        "eagle_config.norm_before_fc", "norm_before_fc", "transformer_layer_config.norm_before_fc"
    )
    fc_norm: bool | None = _switch("fc_norm", "use_aux_norm", "eagle_config.fc_norm", "eagle_config.use_aux_norm",
                                   "transformer_layer_config.fc_norm")  # fmt: skip
    norm_output: bool | None = _switch(
        "norm_output", "eagle_config.norm_output", "transformer_layer_config.norm_output"
    )
    norm_places: Mapping[str, str]
    rope: Rope
    max_positions: int | None = _count("max_position_embeddings")
    tied: bool = _switch("transformer_layer_config.tie_word_embeddings", "tie_word_embeddings", absent=False)
    window: int | None = _count("sliding_window", least=0)
    attention_bias: bool = _switch("transformer_layer_config.attention_bias", "attention_bias", absent=False)
    bias: bool = _switch("transformer_layer_config.bias", "bias", absent=False)
    quantization: str | None
    verifier: str
    verifier_architecture: str
    nested: bool

    @property
    def shares_embedding(self) -> bool:
        """True where SGLang puts the target's embedding in the draft's place (``llama.py`` ``set_embed``)."""
        return self.target_hidden_size in (None, self.hidden_size)

    @property
    def mla(self) -> bool:
        """True for multi-head latent attention by name: SGLang's ``Eagle3DeepseekV2ForCausalLM``, and what other
        programs call the same draft, such as SpecForge's ``DeepseekV3ForCausalLMEagle3``."""
        return "Deepseek" in self.architecture

    @property
    def draft_vocab(self) -> int | None:
        """Rows of the draft's head: ``draft_vocab_size``, or the target's vocabulary when it is null."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def reduced(self) -> bool:
        """True when the draft predicts only a part of the target's vocabulary."""
        return bool(self.draft_vocab_size and self.vocab_size and self.draft_vocab_size < self.vocab_size)

    @classmethod
    def open(cls, folder: str | Path) -> DraftConfig:
        """Read ``folder/config.json``; :class:`InputError` when it cannot be used."""
        twice: list[str] = []
        return cls.from_dict(read_object(folder, "config.json", twice), folder, tuple(twice))

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], where: object = "draft config", duplicates: tuple[str, ...] = ()
    ) -> DraftConfig:
        """A parsed config of any dialect."""
        at, assumed = f"{where}:", []
        inner, eagle = mapping(raw, "transformer_layer_config", at), mapping(raw, "eagle_config", at)
        verifier = dig(mapping(raw, "speculators_config", at), "verifier")
        verifier = verifier if isinstance(verifier, dict) else {}
        flat = {**raw, **{name: value for name, value in inner.items() if value is not None}}
        names = raw.get("architectures")
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise InputError(f"{at} architectures", repr(names)[:80], "a list of names")
        architecture = first_name(names)
        dialect = _dialect(raw, eagle, architecture)
        aux_found = _aux_ids(raw, at)
        # the trainer's own key is more reliable than one written for an engine
        own = [p for p in aux_found if p != SGLANG_AUX_KEY] if dialect in ("speculators", "vllm", "angelslim") else []
        aux_place = next(iter(own or aux_found), "")
        given = {f.name: _given(flat, f.metadata, at) for f in fields(cls) if "names" in f.metadata}
        switches = {f.name: _switched(raw, f.metadata, at) for f in fields(cls) if "places" in f.metadata}

        def assume(name: str, value: Any) -> Any:
            assumed.append(f"{name} is not given; {value} is assumed")
            return value

        heads, hidden = given["heads"], given["hidden_size"]
        given["layers"] = given["layers"] or assume("num_hidden_layers", 1)
        if heads and not given["kv_heads"]:
            given["kv_heads"] = assume("num_key_value_heads", heads)
        by_heads = "kv_lora_rank" not in flat or architecture.startswith("Llama")
        if heads and hidden and by_heads and not given["head_dim"]:
            given["head_dim"] = assume("head_dim", hidden // heads)
        given["window"] = _window(given["window"], flat)
        rope = read_rope(flat, where)
        if rope.spelling == "absent":
            assume("rope_theta", rope.theta)
        eps = number(flat, "rms_norm_eps", at, "a small positive number", lambda value: 0 < value < 1)
        quantization, use_aux = raw.get("quantization_config"), eagle.get("use_aux_hidden_state")
        return cls(
            raw=MappingProxyType(dict(raw)),
            dialect=dialect,
            duplicates=duplicates,
            architecture=architecture,
            model_type=flat["model_type"] if isinstance(flat.get("model_type"), str) else "",
            latent=_latent(flat),
            rms_norm_eps=assume("rms_norm_eps", 1e-6) if eps is None else eps,
            use_aux=True if use_aux is None else bool(use_aux),
            aux_ids=aux_found.get(aux_place),
            aux_place=aux_place,
            aux_found=MappingProxyType(aux_found),
            norm_places=MappingProxyType({name: at for name, (_, at) in switches.items() if "norm" in name and at}),
            rope=rope,
            quantization=str(quantization.get("quant_method")) if isinstance(quantization, dict) else None,
            verifier=str(verifier.get("name_or_path") or ""),
            verifier_architecture=first_name(verifier.get("architectures")),
            nested=isinstance(raw.get("transformer_layer_config"), dict),
            **given,
            **{name: value for name, (value, _) in switches.items()},
            assumed=tuple(assumed + [f"{key} is given twice; its last value is used" for key in duplicates]),
        )

    def get(self, dotted: str) -> Any:
        """The raw value at a dotted path, or None."""
        return dig(self.raw, dotted)


def _dialect(raw: Mapping[str, Any], eagle: Mapping[str, Any], architecture: str) -> Dialect:
    """Which program wrote this config, by its fields."""
    if {"speculators_model_type", "speculators_config", "transformer_layer_config"} & raw.keys():
        return "speculators"
    if architecture in ("Eagle3Speculator", "Eagle3DraftModel"):
        return "speculators"
    if "aux_hidden_states_layer_ids" in raw or "aux_hidden_states_layer_ids" in eagle:  # AngelSlim's spelling
        return "angelslim"
    if any(key in _MODELOPT or key.startswith("parallel_draft_") for key in eagle):
        return "modelopt"
    if "eagle_aux_hidden_state_layer_ids" in raw:
        return "vllm"
    if architecture == "Eagle3LlamaForCausalLM":
        return "angelslim"
    if architecture in ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM"):
        return "eagle"  # as SafeAILab/EAGLE writes it, beside a draft vocabulary
    return "sglang"


def _given(flat: Mapping[str, Any], wanted: Mapping[str, Any], at: str) -> int | None:
    least = wanted["least"]
    expected = f"an integer of at least {least}, or null"
    return number(flat, wanted["names"], at, expected, lambda value: least <= value < 1 << 40, whole=True)


def _switched(raw: Mapping[str, Any], wanted: Mapping[str, Any], at: str) -> tuple[bool | None, str]:
    for place in wanted["places"]:
        value = dig(raw, place)
        if isinstance(value, int):
            return bool(value), place
        if value is not None:
            raise InputError(f"{at} {place}", repr(value)[:80], "true, false or null")
    return wanted["absent"], ""


def _aux_ids(raw: Mapping[str, Any], at: str) -> dict[str, tuple[int, ...]]:
    """The lists of layer ids, by dotted path."""
    found = {place: ids for place in AUX_PLACES if (ids := dig(raw, place)) is not None}
    for place, ids in found.items():
        if not isinstance(ids, list) or not all(type(i) is int and abs(i) < 1 << 30 for i in ids):
            raise InputError(f"{at} {place}", repr(ids)[:80], "a list of layer ids, or null")
    return {place: tuple(ids) for place, ids in found.items()}


def _window(size: int | None, flat: Mapping[str, Any]) -> int | None:
    """The sliding window, where some layer uses it."""
    used, types = flat.get("use_sliding_window"), flat.get("layer_types")
    sliding = isinstance(types, list) and "sliding_attention" in types
    return size or None if used is not False and (sliding or used is True) else None


def _latent(flat: Mapping[str, Any]) -> LatentShape | None:
    """None where a part of it is missing. The weights decide whether the draft really uses it."""
    parts = [flat.get(name) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
    if not all(isinstance(part, int) and 0 < part < 1 << 30 for part in parts):
        return None
    q_rank = flat.get("q_lora_rank")
    interleaved = flat.get("rope_interleave", True) is not False
    return LatentShape(q_rank if isinstance(q_rank, int) and q_rank > 0 else None, *parts, interleaved)
