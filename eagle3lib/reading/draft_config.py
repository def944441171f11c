"""A draft's config.json, in every dialect, as one frozen object that says what it assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.dialects import Dialect, dialect_of
from eagle3lib.reading.files import inside, parse_object, read_text
from eagle3lib.reading.latent import LatentShape, read_latent
from eagle3lib.reading.rope import Rope, read_rope

#: Where aux ids may stand, the first found wins; the dotted path is shown with every finding.
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
ENGINE_PLACE = AUX_PLACES[0]


#: The places of each norm's switch; the first is the one SGLang reads first.
NORM_SWITCHES = {
    "norm_before_residual": ("norm_before_residual", "eagle_config.norm_before_residual"),
    "norm_before_fc": ("eagle_config.norm_before_fc", "norm_before_fc", "transformer_layer_config.norm_before_fc"),
    "fc_norm": ("fc_norm", "use_aux_norm", "eagle_config.fc_norm", "eagle_config.use_aux_norm",
                "transformer_layer_config.fc_norm"),
    "norm_output": ("norm_output", "eagle_config.norm_output", "transformer_layer_config.norm_output"),
}  # fmt: skip


@dataclass(frozen=True)
class DraftConfig:
    """What a draft's config says. None means: not said. Geometry counts heads and values.

    Norm flags are None where absent; ``norm_places`` gives the dotted path of each flag found.
    ``assumed`` lists every value that was filled in, in words.
    """

    raw: Mapping[str, Any]
    dialect: Dialect
    assumed: tuple[str, ...]
    duplicates: tuple[str, ...]
    architecture: str
    model_type: str
    hidden_size: int | None
    intermediate_size: int | None
    layers: int
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    latent: LatentShape | None
    rms_norm_eps: float
    vocab_size: int | None
    draft_vocab_size: int | None
    target_hidden_size: int | None
    num_aux: int | None
    use_aux: bool
    aux_ids: tuple[int, ...] | None
    aux_place: str
    aux_found: Mapping[str, tuple[int, ...]]
    norm_before_residual: bool | None
    norm_before_fc: bool | None
    fc_norm: bool | None
    norm_output: bool | None
    norm_places: Mapping[str, str]
    rope: Rope
    max_positions: int | None
    tied: bool
    window: int | None
    attention_bias: bool
    bias: bool
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
        path = inside(Path(folder), "config.json")
        raw = parse_object(read_text(path), Path(folder) / "config.json", duplicates=twice)
        return cls.from_dict(raw, folder, tuple(twice))

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], where: object = "draft config", duplicates: tuple[str, ...] = ()
    ) -> DraftConfig:
        """A parsed config of any dialect."""
        return _Reader(raw, where).read(duplicates)

    def get(self, dotted: str) -> Any:
        """The raw value at a dotted path, or None."""
        return _dig(self.raw, dotted)


class _Reader:
    """Typed look-ups over one raw config, noting what it had to assume."""

    def __init__(self, raw: Mapping[str, Any], where: object) -> None:
        self.raw, self.where, self.assumed = raw, where, []
        inner = raw.get("transformer_layer_config")
        self.nested = isinstance(inner, dict)
        stated = {key: value for key, value in inner.items() if value is not None} if self.nested else {}
        self.flat: dict[str, Any] = {**raw, **stated}
        for name in ("eagle_config", "speculators_config", "transformer_layer_config"):
            if raw.get(name) is not None and not isinstance(raw[name], dict):
                self.refuse(name, raw[name], "a mapping or null")

    def refuse(self, name: str, found: Any, expected: str) -> None:
        raise InputError(f"{self.where}: {name}", repr(found)[:80], expected)

    def integer(self, *names: str, least: int = 1) -> int | None:
        for name in names:
            value = self.flat.get(name)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 40:
                self.refuse(name, value, f"an integer of at least {least}, or null")
            return value
        return None

    def flag(self, name: str) -> bool:
        return bool(self.switch(f"transformer_layer_config.{name}", name)[0])

    def text(self, name: str) -> str:
        value = self.flat.get(name)
        return value if isinstance(value, str) else ""

    def ids(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for place in AUX_PLACES:
            value = _dig(self.raw, place)
            if value is None:
                continue
            if not isinstance(value, list) or not all(type(i) is int and abs(i) < 1 << 30 for i in value):
                self.refuse(place, value, "a list of layer ids, or null")
            yield place, tuple(value)

    def switch(self, *places: str) -> tuple[bool | None, str]:
        for place in places:
            value = _dig(self.raw, place)
            if value is None:
                continue
            if not isinstance(value, (bool, int)):
                self.refuse(place, value, "true, false or null")
            return bool(value), place
        return None, ""

    def window(self) -> int | None:
        size, types = self.integer("sliding_window", least=0), self.flat.get("layer_types")
        if not size or self.flat.get("use_sliding_window") is False:
            return None
        sliding = isinstance(types, list) and "sliding_attention" in types
        return size if sliding or self.flat.get("use_sliding_window") is True else None

    def read(self, duplicates: tuple[str, ...]) -> DraftConfig:
        names = self.raw.get("architectures")
        if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            self.refuse("architectures", names, "a list of names")
        architecture = _first(names)
        dialect = dialect_of(self.raw, architecture)
        found = dict(self.ids())
        own = [p for p in found if p != ENGINE_PLACE] if dialect in ("speculators", "vllm", "angelslim") else []
        place = next(iter(own or found), "")  # the trainer's own key says more than one written for an engine
        norms = {name: self.switch(*places) for name, places in NORM_SWITCHES.items()}
        heads, hidden = self.integer("num_attention_heads"), self.integer("hidden_size")
        layers = self.integer("num_hidden_layers", least=0)
        kv_heads, head_dim = self.integer("num_key_value_heads"), self.integer("head_dim")
        if not layers:
            layers = self.fill("num_hidden_layers", 1)
        if heads and not kv_heads:
            kv_heads = self.fill("num_key_value_heads", heads)
        if not head_dim and heads and hidden and ("kv_lora_rank" not in self.flat or architecture.startswith("Llama")):
            head_dim = self.fill("head_dim", hidden // heads)
        eps = self.flat.get("rms_norm_eps")
        if eps is not None and (isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 < eps < 1):
            self.refuse("rms_norm_eps", eps, "a small positive number")
        rope = read_rope(self.flat, self.where)
        if rope.spelling == "absent":
            self.fill("rope_theta", rope.theta)
        quantization = self.raw.get("quantization_config")
        verifier = _dig(self.raw, "speculators_config.verifier")
        verifier = verifier if isinstance(verifier, dict) else {}
        use_aux = _dig(self.raw, "eagle_config.use_aux_hidden_state")
        return DraftConfig(
            raw=MappingProxyType(dict(self.raw)),
            dialect=dialect,
            duplicates=duplicates,
            architecture=architecture,
            model_type=self.text("model_type"),
            hidden_size=hidden,
            intermediate_size=self.integer("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            latent=read_latent(self.flat),
            rms_norm_eps=float(self.fill("rms_norm_eps", 1e-6) if eps is None else eps),
            vocab_size=self.integer("vocab_size"),
            draft_vocab_size=self.integer("draft_vocab_size", "truncated_vocab_size"),
            target_hidden_size=self.integer("target_hidden_size"),
            num_aux=self.integer("num_aux_hidden_states"),
            use_aux=True if use_aux is None else bool(use_aux),
            aux_ids=found.get(place),
            aux_place=place,
            aux_found=MappingProxyType(found),
            **{name: value for name, (value, _) in norms.items()},
            norm_places=MappingProxyType({name: path for name, (_, path) in norms.items() if path}),
            rope=rope,
            max_positions=self.integer("max_position_embeddings"),
            tied=self.flag("tie_word_embeddings"),
            window=self.window(),
            attention_bias=self.flag("attention_bias"),
            bias=self.flag("bias"),
            quantization=str(quantization.get("quant_method")) if isinstance(quantization, dict) else None,
            verifier=str(verifier.get("name_or_path") or ""),
            verifier_architecture=_first(verifier.get("architectures")),
            nested=self.nested,
            assumed=tuple(self.assumed + [f"{key} stands twice; its last value is taken" for key in duplicates]),
        )

    def fill(self, name: str, value: Any) -> Any:
        self.assumed.append(f"{name} is not given; {value} is assumed")
        return value


def _first(names: Any) -> str:
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _dig(raw: Mapping[str, Any], dotted: str) -> Any:
    value: Any = raw
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
