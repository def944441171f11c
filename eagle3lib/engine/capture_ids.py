"""Configured layer ids -> boundaries that SGLang captures, by target family and engine version; and back.

In SGLang an id becomes an internal index ``i`` by the rule of the target's family, and the residual stream
at the entry of block ``i``, which is boundary ``i``, is captured. The list is gathered in layer order.
Source: sgl-project/sglang srt/models/<family>.py ``set_eagle3_layers_to_capture`` and the capture loops of
``forward``, wheels 0.5.23 and 0.5.9.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3lib.maths.wiring import default_boundaries

#: Engine versions whose rules are known.
VERSIONS = ("0.5.9", "0.5.23")


@dataclass(frozen=True)
class Refusal:
    """A reason why the server does not start or cannot serve; ``topic`` names what it is about."""

    topic: str
    text: str


@dataclass(frozen=True)
class FamilyRule:
    """How one family turns ids into boundaries.

    ``shift``: ``always`` (id + 1); ``first`` (id + 1 only if the first id is 1, else the id itself);
    ``max`` (the id itself if the largest is n, else id + 1). ``final``: boundary n can be captured.
    ``embedding``: boundary 0 can be captured. ``flagged``: a flag is set on ``layers[i]``, so i = n raises
    and a negative i counts from the end. ``default_shift``: added to the default boundaries.
    """

    shift: Literal["always", "first", "max"] = "always"
    final: bool = False
    embedding: bool = True
    flagged: bool = False
    default_shift: int = 0

    def indices(self, ids: Sequence[int] | None, layers: int) -> list[int]:
        """The internal index of each id; None is the engine's default layers."""
        if ids is None:
            found = [k + self.default_shift for k in default_boundaries(layers)]
        else:
            shift = {"always": 1, "first": int(ids[0] == 1), "max": int(max(ids) != layers)}[self.shift]
            found = [i + shift for i in ids]
        return [i + layers if self.flagged and -layers <= i < 0 else i for i in found]

    def captures(self, boundary: int, layers: int) -> bool:
        """True when the forward pass reaches this boundary's capture."""
        return (0 if self.embedding else 1) <= boundary <= (layers if self.final else layers - 1)


_PLUS, _FLAG, _FINAL = FamilyRule(), FamilyRule(flagged=True), FamilyRule(final=True)
_OLD = FamilyRule(embedding=False)  # the sum with a residual that is None at block 0 raises
RULES: dict[str, dict[str, FamilyRule]] = {
    "0.5.23": {
        **dict.fromkeys(("llama", "llama4", "qwen2", "qwen3", "qwen2_5_vl", "qwen3_vl", "glm4_moe", "glm5_next",
                         "bailing_moe", "longcat_flash", "minimax_m2", "exaone_moe", "apertus"), _PLUS),
        **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5"), _FLAG),
        **dict.fromkeys(("gemma3", "gemma4", "minimax_m3"), _FINAL),
        **dict.fromkeys(("deepseek_v2", "kimi_k25", "glm4_moe_lite"), FamilyRule(shift="first")),
        "gpt_oss": FamilyRule(shift="max", final=True),
        "minimax_m3_vl": FamilyRule(final=True, default_shift=1),
    },
    "0.5.9": {
        **dict.fromkeys(("llama", "llama4", "deepseek_v2", "glm4_moe_lite", "glm4_moe", "gpt_oss", "minimax_m2",
                         "longcat_flash", "exaone_moe", "apertus"), _OLD),
        **dict.fromkeys(("qwen2", "qwen3", "qwen2_5_vl", "bailing_moe"), _PLUS),
        **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_next"), _FLAG),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Captured:
    """What is captured: ``boundaries`` in the engine's order, ``pairs`` of (id, boundary or None).

    ``default`` is True when the engine's own layers stand in for ids it did not get. ``problems`` are
    reasons why the engine fails at start or at the first forward; empty when it serves.
    """

    boundaries: tuple[int, ...]
    pairs: tuple[tuple[int | None, int | None], ...]
    default: bool
    problems: tuple[Refusal, ...] = ()


@dataclass(frozen=True)
class Ids:
    """Ids that capture the wanted boundaries; None, with the reason, where no list does."""

    ids: tuple[int, ...] | None
    reason: str


def engine_version(engine: str) -> tuple[str, str]:
    """``sglang==0.5.14`` -> the nearest version whose rules are known, and a note when it is not the same."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", engine)
    if not found or not engine.strip().lower().startswith("sglang"):
        return VERSIONS[-1], f"{engine!r} is not a known SGLang version: the rules of {VERSIONS[-1]} are applied"

    def number(version: str) -> int:
        major, minor, patch = (min(int(part), 9999) for part in version.split("."))
        return major * 10**8 + minor * 10**4 + patch

    nearest = min(VERSIONS, key=lambda version: abs(number(found[0]) - number(version)))
    same = number(found[0]) == number(nearest)
    return nearest, "" if same else f"the rules of {found[0]} are not known: those of {nearest} are applied"


def family_rule(family: str, version: str) -> FamilyRule | None:
    """The rule of a family, or None where that version's model code has no EAGLE-3 capture.

    Families not known in any version are taken to follow the common rule.
    """
    known = RULES[version]
    return known.get(family) if any(family in rules for rules in RULES.values()) else known["llama"]


def captured(ids: Sequence[int] | None, family: str, layers: int, version: str) -> Captured:
    """What the engine captures for the ids it was given (None: it was given none)."""
    rule = family_rule(family, version)
    if rule is None:
        refusal = Refusal("family", f"{family} has no EAGLE-3 capture in SGLang {version}")
        return Captured((), (), ids is None, (refusal,))
    if ids is not None and not ids:
        return Captured((), (), False, (Refusal("empty", "the list of ids is empty: the target returns no state"),))
    indices = rule.indices(ids, layers)
    problems = [_problem(k, rule, layers, version) for k in indices if not rule.captures(k, layers)]
    boundaries = tuple(sorted({k for k in indices if rule.captures(k, layers)}))
    if not problems and len(boundaries) < len(indices):
        fall = f"{len(indices)} ids fall on {len(boundaries)} boundaries {list(boundaries)}"
        problems = [Refusal("repeat", f"{fall}: states are missing from fc's input")]
    shown = [k if rule.captures(k, layers) else None for k in indices]
    pairs = tuple(zip(ids or (None,) * 3, shown, strict=True))
    return Captured(boundaries, pairs, ids is None, tuple(problems))


def ids_for(boundaries: Sequence[int], family: str, layers: int, version: str) -> Ids:
    """The ids to write into ``eagle_config`` so that exactly these boundaries are captured.

    The order of ``boundaries`` does not matter: the engine gathers in layer order. Every answer has been
    put through :func:`captured`.
    """
    wanted = sorted(set(boundaries))
    rule = family_rule(family, version)
    if rule is None:
        return Ids(None, captured(None, family, layers, version).problems[0].text)
    if not wanted or len(wanted) < len(boundaries):
        once = "a state is captured once, and one at least"
        return Ids(None, f"boundaries {list(boundaries)} cannot be captured: {once}")
    as_is, minus = tuple(wanted), tuple(k - 1 for k in wanted)
    rotated = as_is[1:] + as_is[:1]  # for the families that look at the first id
    for ids in {"always": (minus,), "first": (as_is, minus, rotated), "max": (as_is, minus)}[rule.shift]:
        found = captured(ids, family, layers, version)
        if not found.problems and found.boundaries == as_is:
            return Ids(ids, f"captured as boundaries {list(as_is)} on {family} in SGLang {version}")
    reasons = [_problem(k, rule, layers, version).text for k in wanted if not rule.captures(k, layers)]
    return Ids(None, "; ".join(reasons) or f"no list captures {wanted} on {family} in SGLang {version}")


def _problem(boundary: int, rule: FamilyRule, layers: int, version: str) -> Refusal:
    """Why this boundary is not captured."""
    if boundary == 0:
        text = f"boundary 0, the embedding, cannot be captured in stock SGLang {version}: the sum at block 0 raises"
        return Refusal("embedding", text)
    if boundary == layers:
        how = "raises IndexError" if rule.flagged else "is never reached, so a state is missing from fc's input"
        return Refusal("final", f"boundary {layers}, the last block's output, {how} in SGLang {version}")
    return Refusal("range", f"boundary {boundary} does not exist: the target has boundaries 0 to {layers}")
