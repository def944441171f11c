"""Which wirings are worth trying: every mistake that codebases make with each other's drafts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations

from eagle3lib.maths.draft import Draft
from eagle3lib.maths.wiring import Wiring

#: RoPE bases of trainers that ignore the config (1e4) and of common targets.
BASES = (1e4, 5e5, 1e6)


def describe(wiring: Wiring, configured: Wiring) -> str:
    """What is changed against the configured wiring, in words."""
    changes = []
    for name, (there, here) in configured.differences(wiring).items():
        match name:
            case "boundaries":
                changes.append(f"boundaries {_list(here)} instead of {_list(there)}")
            case "rope_theta":
                changes.append(f"RoPE base {here:g} instead of {there:g}")
            case "rope_scaling":
                kind = dict(here or {}).get("rope_type", "none")
                changes.append(f"RoPE scaling {kind}")
            case _ if isinstance(here, bool):
                changes.append(f"{name} {'on' if here else 'off'}")
            case _:
                changes.append(f"{name} {here} instead of {there}")
    return "; ".join(changes) or "as configured"


def boundary_families(
    configured: Wiring, available: Sequence[int], layers: int | None, ids: Sequence[int] | None
) -> list[Wiring]:
    """All slots changed together: other numberings, defaults, the embedding first, other orders, shifts.

    Args:
        available: boundaries whose states are at hand.
        layers: blocks of the target, for the default layers; ``None`` where it is not known.
        ids: the ids as they stand in the config, whatever numbering they are in.
    """
    here = configured.boundaries
    slots = len(here)
    lists: list[tuple[int, ...]] = []
    for written in (here, *([tuple(ids)] if ids else [])):
        lists += [tuple(k + move for k in written) for move in (0, 1, -1, 2, -2)]
    if layers and slots == 3:
        middle = layers // 2
        lists += [(2, middle, layers - 3), (3, middle + 1, layers - 2), (1, middle - 1, layers - 4)]
    for chosen in list(dict.fromkeys(lists)):  # the embedding, then the rest of a list in its order
        lists += [(0, *rest) for rest in combinations([k for k in chosen if k], slots - 1)]
    lists += [order for order in permutations(here) if slots <= 4]
    known = set(available)
    lists = [chosen for chosen in dict.fromkeys(lists) if len(chosen) == slots and known.issuperset(chosen)]
    shifts = [configured.replace(shift=shift) for shift in (-2, -1, 1, 2) if shift != configured.shift]
    return [configured.replace(boundaries=chosen) for chosen in lists if chosen != here] + shifts


def norms(base: Wiring, draft: Draft) -> Iterator[Wiring]:
    """Each norm before the second depth alone, as far as the draft has the weights: tried with every family too."""
    has = {"norm_before_residual": True, "norm_before_head": True,
           "norm_before_fc": draft.input_norm is not None, "fc_norm": bool(draft.fc_norms)}  # fmt: skip
    for name, possible in has.items():
        if possible:
            yield base.replace(**{name: not getattr(base, name)})


def switches(base: Wiring, draft: Draft, bases: Sequence[float] = ()) -> Iterator[Wiring]:
    """Each switch alone, as far as the draft has the weights; ``bases``: further RoPE bases to try."""
    first = draft.layers[0]
    yield from norms(base, draft)
    flips = {"norm_output": True,
             "attention_bias": first.latent is None and first.q_proj.bias is not None,
             "qk_norm": first.q_norm is not None}  # fmt: skip
    for name, possible in flips.items():
        if possible:
            yield base.replace(**{name: not getattr(base, name)})
    if len(draft.layers) > 1 and all(layer.input_layernorm is not None for layer in draft.layers):
        other = "input_layernorm" if base.later_norm == "hidden_norm" else "hidden_norm"
        yield base.replace(later_norm=other)
    if draft.d2t is not None:
        yield base.replace(d2t="absolute" if base.d2t == "offset" else "offset")
    if draft.own_embedding is not None and draft.target_embedding is not None:
        yield base.replace(embedding="own" if base.embedding == "target" else "target")
    if base.head != "own" and draft.lm_head is not None:
        yield base.replace(head="own")
    for theta in dict.fromkeys((*BASES, *bases)):
        if theta != base.rope_theta:
            yield base.replace(rope_theta=theta)
    if base.rope_scaling:
        yield base.replace(rope_scaling=None)
    if base.window is not None:
        yield base.replace(window=None)


def slot_changes(wiring: Wiring, slot: int, boundaries: Iterable[int]) -> list[Wiring]:
    """Each of ``boundaries`` that no slot reads, in the place of this one's."""
    here = wiring.boundaries
    return [wiring.replace(boundaries=(*here[:slot], k, *here[slot + 1 :])) for k in boundaries if k not in here]


def _list(boundaries: Sequence[int]) -> str:
    return ", ".join(map(str, boundaries))
