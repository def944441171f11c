"""Train the demo's EAGLE-3 draft on a corpus made by ``sample.py``, in a given time on one core.

    python train.py TARGET CORPUS OUT --minutes 122 [--extra SAMPLES.json.gz]

Classic EAGLE-3 (Li et al. 2025): row t pairs the target's state after token t (boundaries 0, 3 and 16) with the
embedding of token t + 1 and learns the target's own choice of token t + 2. The first third of the time trains
depth 1 alone, the rest depths 1 to 3 as they are drafted (training-time test), each depth seeing the causal prefix
of depth 1 and its own chain. Hard targets; a depth weighs 0.8 of the one before. In the end only greedy answers are
learned from, as that is what is served. The corpus may grow while this runs: new shards join at the next pass.
Interrupted, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WIDTH, INNER, HEADS, KV, DIM, EPS, THETA = 576, 448, 9, 3, 64, 1e-5, 1e5
VOCAB, DRAFT_VOCAB, TEMPLATE = 49152, 8000, 22  # tokens of the chat template before the user's first word
DEPTHS, DECAY, BATCH, RATE, HELD_BACK = 3, 0.8, 2400, 1.5e-3, 96
DEEP_FROM, GREEDY_FROM = 0.33, 0.56  # shares of the time


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (WIDTH,), self.weight, EPS)


class Draft(nn.Module):
    """One decoder layer over (embedding, state), ``fc`` before it and a head over the draft vocabulary after."""

    def __init__(self, head: Tensor) -> None:
        super().__init__()

        def linear(inside: int, outside: int) -> nn.Linear:
            layer = nn.Linear(inside, outside, bias=False)
            nn.init.normal_(layer.weight, std=0.02)
            return layer

        self.fc = linear(3 * WIDTH, WIDTH)
        self.qkv, self.out = linear(2 * WIDTH, (HEADS + 2 * KV) * DIM), linear(HEADS * DIM, WIDTH)
        self.up, self.down = linear(WIDTH, 2 * INNER), linear(INNER, WIDTH)
        self.input_norm, self.hidden_norm, self.post_norm, self.norm = Norm(), Norm(), Norm(), Norm()
        self.head = linear(WIDTH, len(head))
        with torch.no_grad():
            self.head.weight.copy_(head)
        self.frequencies = THETA ** (-torch.arange(0, DIM, 2).float() / DIM)

    def step(self, embeds: Tensor, hidden: Tensor, depth: int, chain: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The state ``[B, T, H]`` of the next depth (0 first); ``chain`` keeps keys and values of every depth."""
        batch, length = embeds.shape[:2]
        q, k, v = self.qkv(torch.cat([self.input_norm(embeds), self.hidden_norm(hidden)], -1)).split(
            [HEADS * DIM, KV * DIM, KV * DIM], -1
        )
        q = self.rotate(q.view(batch, length, KV, -1, DIM).permute(0, 2, 3, 1, 4), depth)  # [B, KV, G, T, D]
        k = self.rotate(k.view(batch, length, KV, 1, DIM).permute(0, 2, 3, 1, 4), depth)
        v = v.view(batch, length, KV, 1, DIM).permute(0, 2, 3, 1, 4)
        chain.append((k, v))
        keys, values = chain[0][0][:, :, 0], chain[0][1][:, :, 0]  # [B, KV, T, D]
        scores = (q.flatten(2, 3) @ keys.transpose(-1, -2)).view(*q.shape[:4], length) / math.sqrt(DIM)
        scores = scores + torch.full((length, length), float("-inf")).triu(1)
        own = [(q * key).sum(-1, keepdim=True) / math.sqrt(DIM) for key, _ in chain[1:]]
        shares = torch.cat([scores, *own], -1).float().softmax(-1).bfloat16()  # [B, KV, G, T, T + depth]
        seen = (shares[..., :length].flatten(2, 3) @ values).view(q.shape)
        for place, (_, value) in enumerate(chain[1:], length):
            seen = seen + shares[..., place : place + 1] * value
        hidden = hidden + self.out(seen.permute(0, 3, 1, 2, 4).flatten(2))
        gate, inner = self.up(self.post_norm(hidden)).chunk(2, -1)
        return hidden + self.down(F.silu(gate) * inner)

    def rotate(self, x: Tensor, depth: int) -> Tensor:
        angles = torch.arange(depth, depth + x.shape[-2])[:, None] * self.frequencies
        angles = torch.cat([angles, angles], -1)
        first, second = x.float().chunk(2, -1)
        return (x.float() * angles.cos() + torch.cat([-second, first], -1) * angles.sin()).bfloat16()


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.random = options, random.Random(0)
        torch.manual_seed(0)
        self.embedding = load_file(options.target / "model.safetensors")["model.embed_tokens.weight"].float()
        self.shards: set[Path] = set()
        conversations = self.new_conversations()
        # The first shard's first conversations are never trained on.
        self.held_back, self.conversations = conversations[:HELD_BACK], conversations[HELD_BACK:]
        options.out.mkdir(parents=True, exist_ok=True)
        self.kept = self.vocabulary(conversations)  # [V_d], ascending
        self.draft_id = torch.full((VOCAB,), -1)
        self.draft_id[self.kept] = torch.arange(DRAFT_VOCAB)
        self.draft = Draft(self.embedding[self.kept])
        weights = list(self.draft.parameters())
        groups = [
            {"params": [w for w in weights if w.dim() == 2], "weight_decay": 0.02},
            {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
        self.step = self.tokens = 0
        self.greedy = False  # learn from greedy answers alone
        self.spent = 0.0

    def new_conversations(self) -> list[Any]:
        fresh = sorted(set(self.options.corpus.glob("shard_*.pt")) - self.shards)
        self.shards.update(fresh)
        return [conversation for path in fresh for conversation in torch.load(path, weights_only=True)]

    def vocabulary(self, conversations: list[Any]) -> Tensor:
        """The most frequent tokens of the answers; those of the requests count a little, too."""
        path = self.options.corpus / "draft_vocabulary.pt"
        if path.is_file():
            return torch.load(path, weights_only=True)
        counts = torch.zeros(VOCAB)
        for ids, prompt, _, choices, _ in conversations:
            counts += torch.bincount(choices[prompt - 1 :], minlength=VOCAB)
            counts += 0.3 * torch.bincount(ids[TEMPLATE:prompt], minlength=VOCAB)
        if self.options.extra:
            for sample in json.loads(gzip.decompress(self.options.extra.read_bytes())):
                said = torch.tensor(sample["input_ids"][sample["prompt_tokens"] :])
                counts += torch.bincount(said, minlength=VOCAB)
        kept = counts.topk(DRAFT_VOCAB).indices.sort().values
        torch.save(kept, path)
        return kept

    def batches(self) -> Iterator[list[Any]]:
        """Conversations of like length together, up to ``BATCH`` tokens, in random order, without end."""
        while True:
            self.conversations += self.new_conversations()
            chosen = [c for c in self.conversations if c[4] or not self.greedy]
            order = self.random.sample(chosen, len(chosen))
            batches: list[list[Any]] = []
            for start in range(0, len(order), 400):
                batches.append([])
                for conversation in sorted(order[start : start + 400], key=lambda c: len(c[0])):
                    if batches[-1] and (len(batches[-1]) + 1) * len(conversation[0]) > BATCH:
                        batches.append([])
                    batches[-1].append(conversation)
            self.random.shuffle(batches)
            yield from batches

    def run(self, batch: list[Any], depths: int, training: bool) -> tuple[Any, list[tuple[int, ...]]]:
        """The loss; and at every depth the counts right, asked, right at all depths so far, right so far before."""
        length = max(len(ids) for ids, *_ in batch)
        ids, choices = (torch.zeros(len(batch), length + 1, dtype=torch.long) for _ in range(2))
        states = torch.zeros(len(batch), length, 2, WIDTH, dtype=torch.bfloat16)
        asked = torch.zeros(len(batch), length + 1, dtype=torch.bool)
        for row, (tokens, prompt, seen, best, _) in enumerate(batch):
            ids[row, : len(tokens)], states[row, : len(best)] = tokens, seen
            choices[row, : len(best)] = best
            asked[row, (TEMPLATE - 1 if training and not self.greedy else prompt - 1) : len(best)] = True
        rows = length - 1
        inputs = torch.cat([self.embedding[ids[:, :rows]].bfloat16(), states[:, :rows].flatten(2)], -1)
        pad = (0, depths)
        ids, choices, asked = F.pad(ids, pad), F.pad(choices, pad), F.pad(asked, pad)
        loss, counts, chain = torch.zeros(()), [], []
        alive = torch.ones(len(batch), rows, dtype=torch.bool)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.draft.fc(inputs).float()
            for depth in range(depths):
                ahead = slice(1 + depth, 1 + depth + rows)
                hidden = self.draft.step(self.embedding[ids[:, ahead]], hidden, depth, chain)
                truth, mask = choices[:, ahead], asked[:, ahead]
                wanted = self.draft_id[truth]
                chosen = mask & (wanted >= 0) if training else mask
                logits = self.draft.head(self.draft.norm(hidden[chosen]))
                if training:
                    loss = loss + DECAY**depth * F.cross_entropy(logits.float(), wanted[chosen])
                    continue
                right = torch.zeros_like(mask)
                right[chosen] = self.kept[logits.argmax(-1)] == truth[chosen]
                before, alive = alive & mask, alive & mask & right
                counts.append(tuple(int(x.sum()) for x in (right, mask, alive, before)))
        return loss, counts

    @torch.inference_mode()
    def evaluate(self) -> dict[str, list[float]]:
        runs = [self.run(self.held_back[i : i + 16], 5, training=False)[1] for i in range(0, HELD_BACK, 16)]
        total = torch.tensor(runs).sum(0)  # [depths, 4]
        accuracy, conditional = total[:, 0] / total[:, 1], total[:, 2] / total[:, 3].clamp(min=1)
        return {"accuracy": accuracy.tolist(), "conditional": conditional.tolist()}

    def train(self) -> None:
        checkpoint = self.options.out / "training_state.pt"
        if checkpoint.is_file():
            self.restore(torch.load(checkpoint, weights_only=True))
        told, last = 0.0, time.time()
        for batch in self.batches():
            now = time.time()
            self.spent, last = self.spent + min(now - last, 60), now  # a pause of the machine is no training
            share = min(1.0, self.spent / (60 * self.options.minutes))
            self.greedy = share > GREEDY_FROM
            if share < 1:
                self.descend(batch, DEPTHS if share > DEEP_FROM else 1, share)
            if share >= told or share == 1:
                told = share + 0.06
                print(json.dumps({"step": self.step, "tokens": self.tokens, **self.evaluate()}), flush=True)
                self.save(checkpoint)
            if share == 1:
                return

    def descend(self, batch: list[Any], depths: int, share: float) -> None:
        warm = min(1, (self.step + 1) / 100)
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * warm * (0.49 * (1 + math.cos(math.pi * share)) + 0.02)
        loss, _ = self.run(batch, depths, training=True)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        self.optimizer.step()
        self.step, self.tokens = self.step + 1, self.tokens + sum(len(ids) for ids, *_ in batch)

    def restore(self, state: dict[str, Any]) -> None:
        self.draft.load_state_dict(state["draft"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.spent = state["step"], state["tokens"], state["spent"]

    def save(self, checkpoint: Path) -> None:
        """The draft in SGLang's dialect without the embedding, and the state to go on from."""
        draft, layer = self.draft, "midlayer."
        q, k, v = draft.qkv.weight.split([HEADS * DIM, KV * DIM, KV * DIM])
        gate, up = draft.up.weight.chunk(2)
        weights = {
            "fc.weight": draft.fc.weight,
            layer + "self_attn.q_proj.weight": q,
            layer + "self_attn.k_proj.weight": k,
            layer + "self_attn.v_proj.weight": v,
            layer + "self_attn.o_proj.weight": draft.out.weight,
            layer + "mlp.gate_proj.weight": gate,
            layer + "mlp.up_proj.weight": up,
            layer + "mlp.down_proj.weight": draft.down.weight,
            layer + "hidden_norm.weight": draft.hidden_norm.weight,
            layer + "input_layernorm.weight": draft.input_norm.weight,
            layer + "post_attention_layernorm.weight": draft.post_norm.weight,
            "norm.weight": draft.norm.weight,
            "lm_head.weight": draft.head.weight,
        }
        tensors = {name: w.detach().to(torch.bfloat16).clone() for name, w in weights.items()}
        tensors["d2t"] = self.kept - torch.arange(DRAFT_VOCAB)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
        tensors["t2d"][self.kept] = True
        part = self.options.out / "model.part"
        save_file(tensors, part, metadata={"format": "pt"})
        os.replace(part, self.options.out / "model.safetensors")
        state = {"draft": draft.state_dict(), "optimizer": self.optimizer.state_dict()}
        state |= {"step": self.step, "tokens": self.tokens, "spent": self.spent}
        torch.save(state, checkpoint.with_suffix(".part"))
        os.replace(checkpoint.with_suffix(".part"), checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "corpus", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--minutes", type=float, default=122)
    parser.add_argument("--extra", type=Path, help="more samples to count the draft vocabulary in")
    Trainer(parser.parse_args()).train()


if __name__ == "__main__":
    main()
