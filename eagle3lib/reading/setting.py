"""A speculative setting: how many draft steps, branches a step, and tokens a verify step has."""

from __future__ import annotations

from typing import NamedTuple


class Setting(NamedTuple):
    """SGLang's ``--speculative-num-steps``, ``-eagle-topk`` and ``-num-draft-tokens``; ``None`` where not given.

    ``num_draft_tokens`` counts the root of the tree, the last token that is already known.
    """

    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None

    def __str__(self) -> str:
        return "/".join(map(str, self))

    def resolved(self) -> Setting | None:
        """A chain where no topk is given, which verifies ``num_steps + 1`` tokens; ``None`` where parts stay open."""
        topk = self.topk or 1
        tokens = self.num_steps + 1 if self.num_steps and topk == 1 else self.num_draft_tokens
        return Setting(self.num_steps, topk, tokens) if self.num_steps and tokens else None


#: No speculation.
OFF = Setting(0, 0, 0)
