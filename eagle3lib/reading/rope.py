"""Both spellings of rotary embedding parameters, read as transformers 5 and SGLang read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.fields import number

#: The value when a config has none: transformers ``LlamaConfig``, SGLang models/llama.py.
DEFAULT_THETA = 10000.0


@dataclass(frozen=True)
class Rope:
    """``theta`` and ``scaling`` as they take effect (``scaling`` None: plain rotary).

    ``spelling`` is where they were found: ``rope_parameters`` (transformers 5), ``legacy``
    (``rope_theta``/``rope_scaling``), ``both``, or ``absent``. Where both are given, ``rope_parameters`` wins
    in SGLang 0.5.23 and ``legacy_theta`` is what an older reader takes.
    """

    theta: float = DEFAULT_THETA
    scaling: Mapping[str, Any] | None = None
    spelling: str = "absent"
    legacy_theta: float = DEFAULT_THETA

    @property
    def kind(self) -> str:
        """``default``, ``llama3``, ``yarn``, ``linear``, ``dynamic``..."""
        return str((self.scaling or {}).get("rope_type", "default"))

    @property
    def original_positions(self) -> int | None:
        """The length before scaling, where the scaling names it."""
        value = (self.scaling or {}).get("original_max_position_embeddings")
        return int(value) if isinstance(value, (int, float)) else None


def read_rope(config: Mapping[str, Any], where: object) -> Rope:
    """Rope parameters of a flat config; :class:`InputError` for values that cannot be used.

    Per-layer-type parameters (Gemma) are taken from ``full_attention``. Source: transformers 5
    ``modeling_rope_utils``; sgl-project/sglang srt/models/llama.py ``LlamaDecoderLayer.__init__``.
    """
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    if isinstance(new, dict) and isinstance(new.get("full_attention"), dict):
        new = new["full_attention"]
    for name, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, dict):
            raise InputError(f"{where}: {name}", value, "a mapping or null")
    legacy, theta = (
        number(at, "rope_theta", f"{where}:", "a positive number", lambda value: value > 0)
        for at in (config, new or {})
    )
    spelling = "absent" if legacy is None and old is None else "legacy"
    if new is not None:
        spelling = "rope_parameters" if spelling == "absent" else "both"
    return Rope(
        theta=theta or legacy or DEFAULT_THETA,
        scaling=_scaling(new if new is not None else old),
        spelling=spelling,
        legacy_theta=legacy or DEFAULT_THETA,
    )


def _scaling(found: dict[str, Any] | None) -> Mapping[str, Any] | None:
    """The scaling part alone, ``type`` spelled ``rope_type``; None where it changes nothing."""
    parts = {k: v for k, v in (found or {}).items() if k not in ("rope_theta", "type", "partial_rotary_factor")}
    kind = parts.setdefault("rope_type", (found or {}).get("type", "default"))
    return None if kind in (None, "default") and "mrope_section" not in parts else MappingProxyType(parts)
