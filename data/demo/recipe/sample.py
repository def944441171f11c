"""Conversations that the target itself makes up, with its states: the draft's training data.

    python sample.py TARGET OUT --tokens 300000 --seed 0

The target writes the user's turn too (sampled at temperature 1 from the bare chat template, in most cases after
a few given words), so that the corpus has as many kinds of request as the target knows. It then answers,
greedily or at temperature 0.7. Every ``OUT/shard_SEED_N.pt`` holds 512 conversations: token ids, prompt length,
the states at boundaries 3 and 16 (bfloat16; boundary 0 is the embedding), the target's own choice at every
position, and whether the answer was greedy.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

SLOTS, LENGTH, LONGEST_PROMPT, LONGEST_ANSWER, SHARD = 256, 288, 72, 160, 512
BOUNDARIES = (3, 16)
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
OPENINGS = """Write a|Write an|Write a short|How do I|How does|How can|What is|What are the|Why do|Why is|When did
Where can|Who was|Which|Can you|Could you|Please|I need|I want to|I'm|I have|My|Explain|Describe|Summarize|Rewrite
Translate|List|Give me|Create a|Create an|Design a|Compare|Calculate|Solve|Find the|If a|A train|Implement|In Python,
def|Using SQL,|Tell me|Tell me about|Suggest|Help me|Generate|Compose|Imagine|You are|Pretend|As a|Discuss|Analyze
Identify|Classify|Convert|Edit|Correct|Name|Is it|Are there|Do you|Should I|Let's|Hello|Hi|Thanks|Prove|Draft|Outline
Provide|Develop|Make a|Plan|The|In the|For the|Consider|Based on|Read the following|Given""".replace("\n", "|").split(
    "|"
)


class Target:
    """A Llama in bfloat16 that decodes one token for every slot a step, each slot at its own position."""

    def __init__(self, folder: Path) -> None:
        weights, self.config = load_file(folder / "model.safetensors"), AutoConfig.from_pretrained(folder)
        c = self.config
        self.heads, self.kv, self.width = c.num_attention_heads, c.num_key_value_heads, c.hidden_size
        self.dim = self.width // self.heads
        self.embedding, self.norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
        self.layers = []
        for i in range(c.num_hidden_layers):
            w = {key.split(".", 3)[3]: weights[key] for key in weights if key.startswith(f"model.layers.{i}.")}
            qkv = torch.cat([w[f"self_attn.{name}_proj.weight"] for name in "qkv"])
            up = torch.cat([w["mlp.gate_proj.weight"], w["mlp.up_proj.weight"]])
            norms = w["input_layernorm.weight"], w["post_attention_layernorm.weight"]
            self.layers.append((*norms, qkv, w["self_attn.o_proj.weight"], up, w["mlp.down_proj.weight"]))
        shape = (len(self.layers), SLOTS, self.kv, LENGTH, self.dim)
        self.keys, self.values = torch.zeros(shape, dtype=torch.bfloat16), torch.zeros(shape, dtype=torch.bfloat16)
        angles = torch.arange(LENGTH)[:, None] * c.rope_parameters["rope_theta"] ** (
            -torch.arange(0, self.dim, 2).float() / self.dim
        )
        angles = torch.cat([angles, angles], -1)
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def step(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``[SLOTS, V]`` and states ``[SLOTS, 2, H]`` after tokens ``ids [SLOTS]``."""
        x, slots, kept = self.embedding[ids], torch.arange(SLOTS), []
        longest = min(LENGTH, -(-(int(positions.max()) + 1) // 16) * 16)
        seen = (torch.arange(longest) <= positions[:, None])[:, None, None]  # [SLOTS, 1, 1, longest]
        turn = self.cos[positions][:, None], self.sin[positions][:, None]
        sizes = [self.heads * self.dim, self.kv * self.dim, self.kv * self.dim]
        for i, (norm, post_norm, qkv, out, up, down) in enumerate(self.layers):
            if i in BOUNDARIES:
                kept.append(x.clone())
            q, k, v = F.linear(self._norm(x, norm), qkv).split(sizes, -1)
            q, k = rotate(q.view(SLOTS, -1, self.dim), *turn), rotate(k.view(SLOTS, -1, self.dim), *turn)
            self.keys[i, slots, :, positions], self.values[i, slots, :, positions] = k, v.view(SLOTS, -1, self.dim)
            q = q.view(SLOTS, self.kv, -1, self.dim)  # the heads that share a key, as queries of one
            cache = self.keys[i, :, :, :longest], self.values[i, :, :, :longest]
            x = x + F.linear(F.scaled_dot_product_attention(q, *cache, attn_mask=seen).flatten(1), out)
            gate, value = F.linear(self._norm(x, post_norm), up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * value, down)
        return F.linear(self._norm(x, self.norm), self.embedding).float(), torch.stack(kept, 1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self.width,), weight, self.config.rms_norm_eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


@dataclass
class Slot:
    """A conversation being written. ``forced`` are tokens that are given and not sampled."""

    ids: list[int]
    forced: list[int]
    greedy: bool
    prompt_tokens: int = 0  # 0 while the user's turn is being written
    states: list[Tensor] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)


class Writer:
    """Fills the slots with conversations and hands the finished ones out."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.noise = random.Random(seed), torch.Generator().manual_seed(seed)
        tokenizer = AutoTokenizer.from_pretrained(folder)

        def encode(text: str) -> list[int]:
            return tokenizer(text, add_special_tokens=False)["input_ids"]

        self.start, self.answer = encode(SYSTEM + "<|im_start|>user\n"), encode("\n<|im_start|>assistant\n")
        self.openings, self.end = [encode(text) for text in OPENINGS], tokenizer.eos_token_id
        self.prompts: set[tuple[int, ...]] = set()
        self.num_aux_hidden_states = [self.fresh() for _ in range(SLOTS)]

    def fresh(self) -> Slot:
        given = self.start + (self.random.choice(self.openings) if self.random.random() < 0.6 else [])
        return Slot(given[:1], given[1:], greedy=self.random.random() < 0.6)

    def sample(self, logits: Tensor) -> tuple[list[int], list[int]]:
        """The best token of every slot, and one sampled among the 32 best that are not too unlikely."""
        asking = torch.tensor([not slot.prompt_tokens for slot in self.num_aux_hidden_states])[:, None]
        top, index = logits.topk(32, -1)
        warm = top / torch.where(asking, 1.0, 0.7)
        floor = torch.where(asking, math.log(0.03), math.log(0.08))
        warm = warm.masked_fill(warm < warm[:, :1] + floor, float("-inf"))
        gumbel = -torch.empty_like(warm).exponential_(generator=self.noise).log()
        return index[:, 0].tolist(), index.gather(1, (warm + gumbel).argmax(-1, keepdim=True))[:, 0].tolist()

    def advance(self, slot: Slot, best: int, sampled: int) -> str:
        """Append the slot's next token; ``"done"``, ``"bad"`` (to be thrown away) or ``"on"``."""
        if slot.forced:
            slot.ids.append(slot.forced.pop(0))
            return "on"
        if not slot.prompt_tokens:
            asked = len(slot.ids) - len(self.start)
            if asked > LONGEST_PROMPT:
                return "bad"
            if sampled == self.end:
                key = tuple(slot.ids)
                if asked < 3 or key in self.prompts:
                    return "bad"
                self.prompts.add(key)
                slot.forced, slot.prompt_tokens = list(self.answer), len(slot.ids) + 1 + len(self.answer)
            slot.ids.append(sampled)
            return "on"
        slot.ids.append(best if slot.greedy else sampled)
        said = len(slot.ids) - slot.prompt_tokens
        if slot.ids[-1] != self.end and said < LONGEST_ANSWER and len(slot.ids) < LENGTH:
            return "on"
        return "done" if said >= 8 else "bad"


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    target, writer = Target(options.target), Writer(options.target, options.seed)
    done, tokens, shards, begun = [], 0, 0, time.time()
    while tokens < options.tokens:
        positions = torch.tensor([len(slot.ids) - 1 for slot in writer.num_aux_hidden_states])
        logits, states = target.step(torch.tensor([slot.ids[-1] for slot in writer.num_aux_hidden_states]), positions)
        best, sampled = writer.sample(logits)
        for i, slot in enumerate(writer.num_aux_hidden_states):
            slot.states.append(states[i])
            slot.choices.append(best[i])
            state = writer.advance(slot, best[i], sampled[i])
            if state == "done":
                ids, choices = (torch.tensor(x, dtype=torch.int32) for x in (slot.ids, slot.choices))
                done.append((ids, slot.prompt_tokens, torch.stack(slot.states), choices, slot.greedy))
                tokens += len(slot.ids)
            if state != "on":
                writer.num_aux_hidden_states[i] = writer.fresh()
        if len(done) >= SHARD or (done and tokens >= options.tokens):
            path = options.out / f"shard_{options.seed}_{shards:03d}.pt"
            torch.save(done, path.with_suffix(".part"))
            os.replace(path.with_suffix(".part"), path)
            print(f"{path.name}: {tokens} tokens, {tokens / (time.time() - begun):.0f} a second", flush=True)
            done, shards = [], shards + 1


if __name__ == "__main__":
    main()
