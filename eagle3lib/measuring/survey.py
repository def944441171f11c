"""What a set of samples is, from one pass over it: lengths, vocabulary, states, and what the last state means.

The same key means different states in different tools, before or after the final norm, and a trainer that takes
one for the other trains its draft on another target. Sampled text agrees less with either, so that the two readings are
compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scipy import stats
from torch import Tensor
from torch.nn.functional import pad

from eagle3lib.maths.kernels import lm_head_logits
from eagle3lib.maths.target import Target
from eagle3lib.measuring.accuracy import TargetArgmax, covered, target_argmax
from eagle3lib.measuring.rates import LEVEL, Rate, rate
from eagle3lib.measuring.sample_states import SampleStates
from eagle3lib.reading.samples import Sample


@dataclass(frozen=True)
class Survey:
    """``prompts`` and ``lengths``: tokens of each sample. ``coverage``: of the generated tokens, those that the draft
    vocabulary has. ``boundaries``: those that every sample has; ``named``: every file names them.
    ``norms``: by boundary, the root-mean-square of a typical (median) row of each sample.
    """

    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    coverage: Rate
    boundaries: tuple[int, ...]
    named: bool
    layouts: tuple[str, ...]
    norms: Mapping[int, tuple[float, ...]]
    last: LastState

    @property
    def longest(self) -> int:
        return max(self.lengths)


def survey(dataset: Iterable[SampleStates], boundaries: Sequence[int], ids: Tensor | None, target: Target) -> Survey:
    """``boundaries``: those whose norms are measured; ``ids [V_d]``: the draft vocabulary, ``None``: the target's."""
    prompts, lengths, counts = [], [], []
    norms: dict[int, list[float]] = {k: [] for k in boundaries}
    layouts: set[str] = set()
    common: set[int] | None = None
    last, named = LastState(), True
    for sample_states in dataset:
        sample = sample_states.sample
        prompts.append(sample.prompt_tokens)
        lengths.append(len(sample.input_ids))
        counts.append(covered(sample.input_ids, sample.loss_mask, ids))
        common = set(sample_states.states) if common is None else common & set(sample_states.states)
        named = named and (sample.states is None or sample.boundaries is not None)
        layouts.add(sample.layout or "ours")
        for k in norms.keys() & sample_states.states.keys():
            norms[k].append(float(sample_states.states[k].float().square().mean(-1).sqrt().median()))
        last.add(sample, target)
    inside, generated = zip(*counts, strict=True)
    return Survey(
        tuple(prompts), tuple(lengths), rate(inside, generated), tuple(sorted(common or ())), named,
        tuple(sorted(layouts)), {k: tuple(values) for k, values in norms.items()}, last,
    )  # fmt: skip


#: Tokens counted, in all and of one sample: enough for a clear answer, and cheap for a large vocabulary.
TOKENS, OF_ONE = 1024, 64
#: A target agrees far more often with its own text, sampled or not.
NOT_ITS_OWN = 0.05
#: Rows tested late or early: does the state of row t give token ``t + 1 + shift``?
SHIFTS = (-2, -1, 0, 1, 2)


@dataclass
class LastState:
    """How often the argmax of head(state) and of head(norm(state)) is the token that follows.

    ``normed``: what was decided, ``None`` where the two agree equally often (then it hardly matters) or nothing was
    counted. ``claimed``: what the layout states, ``None`` where it states nothing or files differ.
    """

    only: list[int] = field(default_factory=lambda: [0, 0])  #: tokens that only the one, only the other gives
    claims: set[bool | None] = field(default_factory=set)
    #: By shift: tokens, and those that head(state) and that head(norm(state)) gives.
    shifted: dict[int, list[int]] = field(default_factory=lambda: {shift: [0, 0, 0] for shift in SHIFTS})

    @property
    def tokens(self) -> int:
        return self.shifted[0][0]

    @property
    def claimed(self) -> bool | None:
        return next(iter(self.claims)) if len(self.claims) == 1 else None

    @property
    def normed(self) -> bool | None:
        here, there = self.only
        if not here + there or stats.binomtest(here, here + there).pvalue >= LEVEL:
            return None
        return here > there

    @property
    def shares(self) -> dict[int, float]:
        """By shift, the share of tokens that the better reading gives."""
        return {shift: max(hits) / tokens for shift, (tokens, *hits) in self.shifted.items() if tokens}

    @property
    def shift(self) -> int:
        """The shift of the files' rows: another than 0 only where it gives, beyond chance, twice as many tokens."""
        if not self.shares:
            return 0
        best = max(self.shares, key=lambda shift: self.shares[shift])
        tokens, *hits = self.shifted[best]
        usual = min(max(2 * self.shares.get(0, 0.0), NOT_ITS_OWN), 1.0)
        return best if stats.binomtest(max(hits), tokens, usual, "greater").pvalue < LEVEL else 0

    @property
    def foreign(self) -> bool:
        """Neither reading gives what follows: shifted rows, or a state of another target."""
        most = max(self.shifted[0][1:])
        return bool(self.tokens) and stats.binomtest(most, self.tokens, NOT_ITS_OWN, "less").pvalue < LEVEL

    def add(self, sample: Sample, target: Target) -> None:
        """Count one sample; nothing where it has no last state or enough was counted."""
        last = sample.last_hidden_state
        if last is None or self.tokens >= TOKENS:
            return
        self.claims.add(sample.last_is_normed)
        rows = sample.loss_mask[1:].nonzero().flatten()[:OF_ONE]  # row t is followed by token t + 1
        state = target.to_compute(last[rows])
        argmax = [lm_head_logits(each, target.lm_head).argmax(-1).cpu() for each in (state, target.normed(state))]
        for shift, counts in self.shifted.items():
            at = rows + 1 + shift
            inside = (at >= 0) & (at < len(sample.input_ids))
            right = [(each == sample.input_ids[at.clamp(0, len(sample.input_ids) - 1)])[inside] for each in argmax]
            counts[:] = [old + int(new.sum()) for old, new in zip(counts, (inside, *right), strict=True)]
        plain, normed = (each == sample.input_ids[rows + 1] for each in argmax)
        self.only[0] += int((plain & ~normed).sum())
        self.only[1] += int((normed & ~plain).sum())

    def summary(self) -> str:
        """What was decided and on which counts."""
        if not self.tokens:
            return "none in the files"
        is_so = {True: "after the final norm", False: "before the final norm", None: "not distinguishable"}
        claim = "" if self.claimed is None else f"; its layout states {is_so[self.claimed]}"
        tokens, plain, normed = self.shifted[0]
        return (
            f"{is_so[self.normed]}: head(state) gives {plain} and head(norm(state)) {normed} of {tokens} tokens that "
            f"follow{claim}"
        )


def target_argmax_of(
    layers: int, target: Target, ids: Tensor | None, found: LastState
) -> Callable[[SampleStates], TargetArgmax | None]:
    """A function that gives the target's argmax after each generated token, ``[T]``.

    From boundary ``layers`` or the file's last state; ``None`` where there is neither, or where it is not known
    whether the file's is normed. ``ids``: the draft vocabulary. Rows before the first generated token are not computed.
    """

    on_device = None if ids is None else ids.to(target.lm_head.device)

    def argmax(sample_states: SampleStates) -> TargetArgmax | None:
        last, normed = sample_states.states.get(layers), False
        if last is None:
            last = sample_states.sample.last_hidden_state
            normed = found.claimed if found.normed is None else found.normed
        if last is None or normed is None:
            return None
        begin = int(sample_states.sample.loss_mask.int().argmax())
        last = target.to_compute(last[begin:])
        known = target_argmax(last if normed else target.normed(last), target.lm_head, on_device)
        return TargetArgmax(*(pad(each, (begin, 0), value=-1) for each in (known.full, known.in_draft)))

    return argmax
