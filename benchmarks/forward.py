"""How fast is the forward pass, beside two trainers' and beside its own matrix products alone?

    python benchmarks/forward.py [--quick] [--threads 2] [--widths 576 2048 4096] [--dtype bfloat16]

Shapes are the demo draft's, Llama-3.2-1B's and Llama-3.1-8B's, one layer, random weights. All sides get the same
weights (shared), tokens, threads and work: logits over the draft vocabulary and their argmax, no loss, no teacher. A
repetition runs every side once, in turn; figures are medians over repetitions, ratios are taken within a repetition
(theirs / ours: above 1 we are faster). ``tokens_per_second`` counts drafts: tokens times depths. ``gemm_share`` is our
rate as a part of the rate at which the same matrix products run alone, attention's causal half included, its softmax
not.

Each peer takes the fastest of its attentions that run on a CPU, chosen anew for each length (``ATTENTIONS``).
speculators' flex attention is not among them: uncompiled, it refuses rows that do not fill its blocks of 128.

The two figures of memory are those of ``benchmarks/memory.py``. On a GPU (``--device cuda``) the peers are left out,
and the goal is 60 % of the bf16 matrix rate; none was at hand.
The last line of output is one JSON document.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3lib.maths.draft import Draft, forward
from eagle3lib.maths.draft_weights import Layer, Linear
from eagle3lib.maths.wiring import Wiring

#: Width: inner width, heads, kv heads, head dim, draft vocabulary, and the dtype unless another is asked for: float32
#: where the demo's drafts are checked, bfloat16 as large drafts are served.
SHAPES = {
    576: (448, 9, 3, 64, 8000, torch.float32),
    2048: (8192, 32, 8, 64, 32000, torch.bfloat16),
    4096: (14336, 32, 8, 128, 32000, torch.bfloat16),
}
WIRING = Wiring(boundaries=(2, 16, 29), rope_theta=5e5, embedding="own")
ATTENTIONS = {"speculators": ("sdpa", "eager"), "specforge": ("sdpa", "flex_attention")}
Run = Callable[[], object]


def random_draft(width: int, dtype: torch.dtype, device: str) -> Draft:
    inner, heads, kv_heads, head_dim, vocab, _ = SHAPES[width]

    def normal(out: int, columns: int) -> Tensor:
        return torch.randn(out, columns, device=device).mul_(columns**-0.5).to(dtype)

    norm = torch.ones(width, dtype=dtype, device=device)
    layer = Layer(
        q_proj=Linear(normal(heads * head_dim, 2 * width)), k_proj=Linear(normal(kv_heads * head_dim, 2 * width)),
        v_proj=Linear(normal(kv_heads * head_dim, 2 * width)), o_proj=Linear(normal(width, heads * head_dim)),
        gate_proj=normal(inner, width), up_proj=normal(inner, width), down_proj=normal(width, inner),
        post_attention_layernorm=norm, input_layernorm=norm, hidden_norm=norm,
    )  # fmt: skip
    return Draft(
        fc=Linear(normal(width, 3 * width)), input_norm=None, fc_norms=(), layers=(layer,), norm=norm,
        lm_head=normal(vocab, width), own_embedding=normal(2 * vocab, width), target_embedding=None,
        d2t=torch.zeros(vocab, dtype=torch.int64, device=device), num_aux_hidden_states=3,
        head_dim=head_dim, eps=1e-5, max_positions=4096,
    )  # fmt: skip


def products(draft: Draft, rows: int, depths: int) -> Run:
    """The matrix products of one forward pass and nothing else."""
    (layer,) = draft.layers
    linears = (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj)
    weights = [*(linear.weight for linear in linears), layer.gate_proj, layer.up_proj, layer.down_proj]
    inputs = {w.shape[1]: torch.randn(rows, w.shape[1]).to(w) for w in (*weights, draft.fc.weight)}
    group, dim = len(layer.q_proj.weight) // len(layer.k_proj.weight), draft.head_dim
    heads = len(layer.k_proj.weight) // dim
    q = torch.randn(heads, rows * group, dim).to(draft.norm)
    k, v = (torch.randn(heads, rows, dim).to(draft.norm) for _ in range(2))

    def run() -> None:
        F.linear(inputs[draft.fc.weight.shape[1]], draft.fc.weight)
        for _ in range(depths):
            for weight in weights:
                F.linear(inputs[weight.shape[1]], weight)
            for start in range(0, rows, 128):  # the causal half, a block of queries at a time
                stop = min(start + 128, rows)
                torch.bmm(torch.bmm(q[:, start * group : stop * group], k[:, :stop].mT), v[:, :stop])
            for part in inputs[draft.width].split(512):
                F.linear(part, draft.lm_head)

    return run


def timed(run: Run, device: str = "cpu") -> float:
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Peers:
    """The trainers' forward passes on one draft, each with its fastest attention at hand."""

    def __init__(self, draft: Draft) -> None:
        self.built: dict[str, dict[str, Callable]] = {}
        for name, attentions in ATTENTIONS.items():
            try:
                build = getattr(importlib.import_module("peers"), name)
                self.built[name] = {attention: build(draft, WIRING, attention) for attention in attentions}
            except ImportError as error:
                print(f"{name} is not at hand ({error}): its ratios are null", flush=True)

    def fastest(self, states: Tensor, tokens: Tensor) -> dict[str, Callable]:
        """After one run to warm up (and compile), the attention that draws two depths fastest."""
        best = {}
        for name, builds in self.built.items():
            seconds = {}
            for attention, run in builds.items():
                run(states, tokens, 2)
                seconds[attention] = timed(lambda run=run: run(states, tokens, 2))
            attention = min(seconds, key=seconds.get)
            best[name] = builds[attention]
            told = ", ".join(f"{other} {value:.2f} s" for other, value in seconds.items())
            print(f"{name} at {len(tokens)} tokens takes {attention} ({told})", flush=True)
        return best


def cases(width: int, lengths: list[int], depths: list[int], options: argparse.Namespace) -> Iterator[dict]:
    dtype = getattr(torch, options.dtype) if options.dtype else SHAPES[width][-1]
    draft = random_draft(width, dtype, options.device)
    peers = Peers(draft) if options.device == "cpu" else None
    for length in lengths:
        states = torch.randn(length, 3, width, device=options.device).to(dtype)
        tokens = torch.randint(len(draft.own_embedding), (length,), device=options.device)
        forward(draft, WIRING, states, tokens, 2)
        others = peers.fastest(states.flatten(1), tokens) if peers else {}
        for depth in depths:
            runs = {"ours": lambda: forward(draft, WIRING, states, tokens, depth)}  # noqa: B023 (called at once)
            runs["products"] = products(draft, length - 1, depth)
            for name, run in others.items():
                runs[name] = lambda run=run: run(states.flatten(1), tokens, depth)  # noqa: B023
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            begin = time.perf_counter()
            while not enough(len(seconds["ours"]), time.perf_counter() - begin, options):
                for name, run in runs.items():
                    seconds[name].append(timed(run, options.device))
            yield figures(width, length, depth, str(dtype).removeprefix("torch."), seconds)


def enough(repetitions: int, spent: float, options: argparse.Namespace) -> bool:
    """Short cases are repeated up to 9 times; long ones, whose noise averages out within a run, at least twice."""
    if spent > options.most_seconds:
        return repetitions >= 2
    return repetitions >= (options.repetitions if spent > options.seconds else 9)


def figures(width: int, length: int, depths: int, dtype: str, seconds: dict[str, list[float]]) -> dict:
    """One case. Ratios are paired: the median of quotients within repetitions, with the lowest and highest."""

    def against(name: str) -> list[float]:
        return [a / b for a, b in zip(seconds.get(name, []), seconds["ours"], strict=False)]

    ratio = {name: round(statistics.median(against(name)), 3) if against(name) else None for name in ATTENTIONS}
    spread = {name: [round(min(a), 3), round(max(a), 3)] for name in ATTENTIONS if (a := against(name))}
    return {
        "width": width,
        "tokens": length,
        "depths": depths,
        "dtype": dtype,
        "seconds": round(statistics.median(seconds["ours"]), 4),
        "tokens_per_second": round((length - 1) * depths / statistics.median(seconds["ours"]), 1),
        "ratio": ratio,
        "ratio_range": spread,
        "gemm_share": round(statistics.median(against("products")), 3),
        "repetitions": len(seconds["ours"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one width, one length, two depths")
    parser.add_argument("--widths", nargs="+", type=int, choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 2048])
    parser.add_argument("--depths", nargs="+", type=int, default=[1, 3, 7])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="one for all widths")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repetitions", type=int, default=3, help="of a case that takes longer than --seconds")
    parser.add_argument("--seconds", type=float, default=6, help="a case is repeated up to 9 times within")
    parser.add_argument("--most-seconds", type=float, default=75, help="a case that takes longer is run twice")
    parser.add_argument("--no-memory", action="store_true", help="leave the two figures of memory out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore")
    if options.quick:
        options.widths, options.tokens, options.depths = options.widths[:1], options.tokens[:1], [1, 3]
    if not torch.cuda.is_available():
        print("no CUDA device at hand")
    print(f"torch {torch.__version__}, {options.threads} threads", flush=True)
    found = []
    for width in options.widths:
        for case in cases(width, options.tokens, options.depths, options):
            print(json.dumps(case), flush=True)
            found.append(case)
    result = {"cases": found, "memory_ratio_1000_to_10": None, "kimi_size_peak_gb": None, "threads": options.threads}
    if not options.no_memory:
        memory = importlib.import_module("memory")  # beside this file
        result["kimi_size_peak_gb"] = memory.kimi_peaks()["kimi_forward_gb"]
        result["memory_ratio_1000_to_10"] = memory.ratio()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
