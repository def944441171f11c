"""The target's own greedy answers to held-out prompts: what notebooks 02 and 03 measure the draft on.

python held_out.py TARGET PROMPTS.jsonl OUT.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from eagle3lib.maths.target import Target
from eagle3lib.reading.prompts import read_prompts

NEW_TOKENS = 112  # 96 that a server is asked for, and 16 past them, to predict the last verify step


def main(target: str, prompts: str, out: str) -> None:
    asked = read_prompts(prompts, target)
    answers = Target.open(target).greedy([prompt.input_ids for prompt in asked], NEW_TOKENS)
    with Path(out).open("w") as file:
        for prompt, answer in zip(asked, answers, strict=True):
            ids = [*prompt.input_ids, *answer]
            line = {"input_ids": ids, "prompt_tokens": len(prompt.input_ids), "category": prompt.category}
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
