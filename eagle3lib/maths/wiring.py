"""Every switch on which trainers and engines disagree, in one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True)
class Wiring:
    """How a draft is fed and read. The weights are not part of it.

    Defaults are classic EAGLE-3 (Li et al. 2025, arXiv 2503.01840) as SGLang serves it.
    """

    #: Target boundaries, from 0, of the aux states in the order in which ``fc`` reads them.
    boundaries: tuple[int, ...]
    #: State ``t`` is paired with the embedding of token ``t + 1 + shift``.
    shift: int = 0
    #: One RMS norm over the whole concatenation before ``fc`` (speculators ``norm_before_fc``).
    norm_before_fc: bool = False
    #: One RMS norm per aux state before ``fc`` (SpecForge, speculators ``fc_norm``).
    fc_norm: bool = False
    #: The residual is the normed hidden state, not the raw one (speculators ``norm_before_residual``).
    norm_before_residual: bool = False
    #: The state fed back at depth 2 and later is post-norm (SGLang, vLLM, speculators ``norm_output``).
    norm_output: bool = False
    #: The final norm is applied before the head (off only in SpecForge with ``norm_output: false``).
    norm_before_head: bool = True
    #: RoPE base, and the scaling mapping as transformers spells it (``None``: plain rotary).
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    #: Keys further back than this many tokens are not seen; ``None`` is full attention.
    window: int | None = None
    #: The q, k and v biases in the file are used (SGLang drops them), and its per-head q and k norms.
    attention_bias: bool = False
    qk_norm: bool = False
    #: Which norm opens layers after the first: SGLang applies ``hidden_norm``, trainers ``input_layernorm``.
    later_norm: Literal["hidden_norm", "input_layernorm"] = "hidden_norm"
    #: ``offset``: target id = draft id + d2t[draft id]; ``absolute``: target id = d2t[draft id].
    d2t: Literal["offset", "absolute"] = "offset"
    #: ``tied``: the first rows of the embedding serve as the draft's head; ``target``: the target's head does.
    head: Literal["own", "tied", "target"] = "own"
    #: Which embedding the draft reads: engines usually replace its own by the target's.
    embedding: Literal["target", "own"] = "target"

    def __post_init__(self) -> None:
        if self.rope_scaling is not None:
            object.__setattr__(self, "rope_scaling", MappingProxyType(dict(self.rope_scaling)))

    def __hash__(self) -> int:  # the generated one would hash the scaling, which is a mapping
        return hash((self.boundaries, self.shift, self.rope_theta))

    def replace(self, **changes: Any) -> Wiring:
        """This wiring with some switches changed."""
        return replace(self, **changes)

    def differences(self, other: Wiring) -> dict[str, tuple[Any, Any]]:
        """The switches on which ``other`` differs, as ``{name: (here, there)}``."""
        names = self.__dataclass_fields__
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return {name: (here, there) for name, (here, there) in pairs.items() if here != there}


def default_boundaries(layers: int) -> tuple[int, int, int]:
    """The three boundaries that every trainer and engine takes by default."""
    return 2, layers // 2, layers - 3
