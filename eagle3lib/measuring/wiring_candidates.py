"""Which wirings are worth trying, every mistake that codebases make with each other's drafts, and the search over them.

One search serves two questions: the wiring that samples were trained on (``wiring_search``) and the wiring that an
engine served (``served_wiring``). Each brings its score and its test of significance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import combinations, permutations
from typing import Any, TypeVar

from eagle3lib.maths.draft import Draft
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.sample_states import Progress

Found = TypeVar("Found")

#: Wirings measured in full beside the configured one and single changes: explained by a known mistake, and any others.
EXPLAINED, OTHERS = 2, 3
#: Of the lists of boundaries under one norm, and of the boundaries for one aux state, those that a rough score leaves.
LISTS, BOUNDARIES = 8, 3
#: RoPE bases of trainers that ignore the config (1e4) and of common targets.
BASES = (1e4, 5e5, 1e6)


def describe(wiring: Wiring, configured: Wiring) -> str:
    """What is changed against the configured wiring, as text."""
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
    """All boundaries changed together: other numberings, defaults, the embedding first, other orders.

    Args:
        available: boundaries whose states are available.
        layers: blocks of the target, for the default layers; ``None`` where it is not known.
        ids: the ids as written in the config, whatever numbering they are in.
    """
    here = configured.boundaries
    count = len(here)
    lists: list[tuple[int, ...]] = []
    for written in (here, *([tuple(ids)] if ids else [])):
        lists += [tuple(k + move for k in written) for move in (0, 1, -1, 2, -2)]
    if layers and count == 3:
        middle = layers // 2
        lists += [(2, middle, layers - 3), (3, middle + 1, layers - 2), (1, middle - 1, layers - 4)]
    for chosen in list(dict.fromkeys(lists)):  # the embedding, then the rest of a list in its order
        lists += [(0, *rest) for rest in combinations([k for k in chosen if k], count - 1)]
    lists += [order for order in permutations(here) if count <= 4]
    known = set(available)
    lists = [chosen for chosen in dict.fromkeys(lists) if len(chosen) == count and known.issuperset(chosen)]
    return [configured.replace(boundaries=chosen) for chosen in lists if chosen != here]


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
    yield from (base.replace(shift=shift) for shift in (-2, -1, 0, 1, 2) if shift != base.shift)
    flips = {"norm_output": True,
             "attention_bias": first.mla is None and first.q_proj.bias is not None,
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


def aux_state_changes(wiring: Wiring, index: int, boundaries: Iterable[int]) -> list[Wiring]:
    """Each of ``boundaries`` that is not read yet, in the place of the one at ``index``."""
    here = wiring.boundaries
    return [wiring.replace(boundaries=(*here[:index], k, *here[index + 1 :])) for k in boundaries if k not in here]


def _list(boundaries: Sequence[int]) -> str:
    return ", ".join(map(str, boundaries))


class CandidateSearch(ABC):
    """Scores wirings cheaply, none twice, and chooses those to measure in full.

    ``available``: boundaries whose states are available; ``bases``: further RoPE bases to try.
    """

    def __init__(
        self, draft: Draft, configured: Wiring, available: Sequence[int], bases: Sequence[float], progress: Progress
    ) -> None:
        self.draft, self.configured, self.available = draft, configured, available
        self.bases, self.progress = bases, progress
        self.scores: dict[Wiring, float] = {}
        self.rough_scores: dict[Wiring, float] = {}
        self.explained: set[Wiring] = set()

    @abstractmethod
    def score(self, wiring: Wiring, rough: bool) -> float:
        """What it is worth on a few rows, more is better; ``rough``: on fewer rows still."""

    @abstractmethod
    def worse(self, wiring: Wiring, than: Wiring, comparisons: int) -> bool:
        """Whether it was shown, beyond chance, to be worse; ``comparisons`` are made at once."""

    def settled(self, wirings: Iterable[Wiring]) -> Wiring | None:
        """One of these that needs no other, where that can be known before all are measured."""
        return None

    def best(self, wirings: Iterable[Wiring], count: int = 1, shortlist: int | None = None) -> list[Wiring]:
        """The first few by score; ``shortlist``: so many are scored, chosen by their rough scores."""
        chosen = list(dict.fromkeys(wirings))
        if shortlist is not None:
            chosen = self._sorted(chosen, self.rough_scores, rough=True)[:shortlist]
        return self._sorted(chosen, self.scores, rough=False)[:count]

    def _sorted(self, wirings: list[Wiring], known: dict[Wiring, float], rough: bool) -> list[Wiring]:
        known.update({wiring: self.score(wiring, rough) for wiring in wirings if wiring not in known})
        return sorted(wirings, key=lambda wiring: -known[wiring])

    @cached_property
    def singles(self) -> list[Wiring]:
        """Each switch of the configured wiring alone."""
        return list(switches(self.configured, self.draft, self.bases))

    def search(self, layers: int | None, ids: Sequence[int] | None) -> list[Wiring]:
        """The wirings to measure in full, the configured one first.

        Among them is every single change, but for those shown to be worse than the best of the known mistakes.
        ``layers`` and ``ids`` as in ``boundary_families``.
        """
        self.progress(0.0, "other numberings and orders, norms with each; each switch alone")
        leaders, settled = [], self.settled([self.configured])
        hidden = [] if settled else norms(self.configured, self.draft)  # norms hide what boundaries are worth
        for base in (self.configured, *hidden):
            lists = [base, *boundary_families(base, self.available, layers, ids)]
            leaders += self.best(lists, shortlist=LISTS)
            self.explained.update(lists)
        self.explained.update(self.singles)
        likely = self.best([self.configured, *self.singles, *self.scores], EXPLAINED)
        settled = self.settled([self.configured, *likely])
        climbed = []
        for count, start in enumerate(dict.fromkeys([settled] if settled else [likely[0], *leaders])):
            self.progress(0.2 + 0.05 * count, f"other layers for each aux state of {list(start.boundaries)}")
            climbed.append(self.climb(start, near=settled is not None))
        for base in dict.fromkeys([settled or likely[0], *self.best(climbed)]):
            variants = list(switches(base, self.draft, self.bases))
            self.explained.update(variants if base in self.explained else [])
            self.best(variants)
        best = settled or likely[0]
        open_ones = [each for each in self.singles if not self.worse(each, best, len(self.singles))]
        chosen = list(dict.fromkeys([self.configured, *likely, *open_ones]))
        return chosen + self._others(chosen)

    def climb(self, wiring: Wiring, near: bool) -> Wiring:
        """Change one boundary at a time while it helps, so that a change of all is found; ``near``: by one block."""
        for _ in range(2):
            before = wiring
            for index, here in enumerate(wiring.boundaries):
                tried = [k for k in self.available if not near or abs(k - here) == 1]
                changed = self.best(aux_state_changes(wiring, index, tried), BOUNDARIES, BOUNDARIES)
                wiring = self.best([wiring, *changed])[0]
            if wiring == before:
                break
        return wiring

    def _others(self, chosen: Sequence[Wiring]) -> list[Wiring]:
        """The best besides; of those that differ in the RoPE base alone, which look alike, the first."""
        found: list[Wiring] = []
        for wiring in self.best(self.scores, len(self.scores)):
            alike = any(set(wiring.differences(other)) <= {"rope_theta"} for other in (*chosen, *found))
            if not alike and wiring not in self.singles and len(found) < OTHERS:
                found.append(wiring)
        return found


def least_changed(
    ranked: Sequence[Found], rival: Callable[[Found, Found], bool], changes: Callable[[Found], Any]
) -> tuple[Found, list[Found], list[Found]]:
    """What to name of ``ranked``, best first; what is too near to be distinguished from it; and all but it.

    Of many neighbours one is often ahead by luck. So of the first's rivals the one that changes least is named.
    """
    rivals = [each for each in ranked if rival(ranked[0], each)] or [ranked[0]]
    best = min(rivals, key=changes)
    return best, [each for each in rivals if each is not best], [each for each in ranked if each is not best]
