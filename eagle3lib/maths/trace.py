"""The forward pass at one position of one conversation, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.maths.draft import Draft, before_head, combine, depth_states, rows_of
from eagle3lib.maths.draft_weights import head_weight, target_ids
from eagle3lib.maths.kernels import lm_head_logits
from eagle3lib.maths.wiring import Wiring

#: What happens at each stage, by the name that the forward pass gives it.
NOTES = {
    "captured states": "The target's aux states after this token, concatenated.",
    "fc": "One matrix makes one hidden state of all aux states; later depths feed back their own instead.",
    "embedding": "The embedding of the next token: the token that the draft already knows.",
    "input_layernorm": "The embedding, normed.",
    "hidden_norm": "The hidden state, normed on its own, since it is far larger than an embedding.",
    "concatenation": "Side by side, embedding first: from here on twice as wide as the draft (2H).",
    "q": "Queries. The matrix reads 2H and gives heads x head width, as in any layer.",
    "k": "Keys, from 2H as well.",
    "v": "Values, from 2H as well.",
    "latent q": "Queries of MLA: 2H goes down to a small latent and up to the heads; rotated, padded to one width.",
    "latent k": "Keys of MLA, from a latent that all heads share; its rotated part is the same in every head.",
    "latent v": "Values of MLA, out of the keys' latent, padded to the width of the keys.",
    "attention": "What the heads saw: all earlier rows at depth 1, and this chain's own later depths.",
    "residual": "The output projection gives H again, so it adds to the hidden state alone: 2H in, H out.",
    "mlp": "The gated MLP, added. This is what the next depth is fed.",
    "norm": "The final norm.",
    "logits": "One number for each word of the draft vocabulary.",
}


@dataclass(frozen=True)
class Stage:
    """One stage at one position: ``shape`` of its row, root mean square, first values, and what happens."""

    depth: int
    name: str
    shape: tuple[int, ...]
    rms: float
    first: tuple[float, ...]
    note: str


def trace(draft: Draft, wiring: Wiring, states: Tensor, tokens: Tensor, position: int, depths: int = 2) -> list[Stage]:
    """Every stage of the chain that starts at row ``position``, in the order of execution.

    The last stage of each depth is ``proposed``: its first value is the target id.
    """
    tokens = torch.as_tensor(tokens, device=draft.norm.device)
    if not 0 <= position < len(tokens) - 1:
        raise InputError("position", position, f"0 to {len(tokens) - 2}: the next token must be known")
    ahead = tokens[position + 2 :].tolist()  # what the depths are to propose
    tokens, states = tokens[: position + depths + 1], states[: position + depths + 1]
    rows, depth = rows_of(tokens, wiring), 1
    stages: list[Stage] = []

    def on_stage(name: str, value: Tensor) -> None:
        row = value[position if len(value) >= rows else 0]  # all rows are there, or those from ``position`` on
        row = row.flatten().float()
        first = tuple(round(number, 4) for number in row[:4].tolist())
        stages.append(Stage(depth, name, (len(row),), float(row.pow(2).mean().sqrt()), first, NOTES[name]))

    weight, ids = head_weight(draft, wiring), target_ids(draft, wiring)
    hidden = combine(draft, wiring, states, on_stage)
    for state in depth_states(draft, wiring, hidden, tokens, depths, position, on_stage):
        last = before_head(draft, wiring, state[:1])  # [1, H]
        if wiring.norm_before_head:
            on_stage("norm", last)
        logits = lm_head_logits(last, weight)  # [1, V_d]
        on_stage("logits", logits)
        best = int(logits.argmax())
        token = best if ids is None else int(ids[best])
        note = f"The best word, draft id {best}, is the target's {token}."
        if depth <= len(ahead):
            truth = ahead[depth - 1]
            note += " Right: it comes next." if truth == token else f" Wrong: {truth} comes next."
        stages.append(Stage(depth, "proposed", (1,), float(token), (float(token),), note))
        depth += 1
    return stages
