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

A draft of Kimi-K2.5's size is loaded and run in a process of its own; its peak is the largest resident set.
On a GPU (``--device cuda``) the peers are left out, and the goal is 60 % of the bf16 matrix rate; none was at hand.
The last line of output is one JSON document.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
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
#: The draft of Kimi-K2 as published (AQ-MedAI/Kimi-K2-Instruct-eagle3).
KIMI = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 7168, "vocab_size": 163840,
    "intermediate_size": 18432, "num_hidden_layers": 1, "num_attention_heads": 64, "num_key_value_heads": 64,
    "head_dim": 128, "draft_vocab_size": 32000, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}  # fmt: skip

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


def kimi_size_peak_gb(threads: int) -> float:
    """Peak memory, in GB of 1e9 bytes, of a process that loads a draft of ``KIMI``'s size and drafts with it.

    Its random weights are written to a temporary folder, a tensor a file, so that nothing holds them all at once.
    """
    width, heads, inner = KIMI["hidden_size"], KIMI["num_attention_heads"] * KIMI["head_dim"], KIMI["intermediate_size"]
    shapes = {f"midlayer.self_attn.{name}_proj.weight": (heads, 2 * width) for name in "qkv"} | {
        "midlayer.self_attn.o_proj.weight": (width, heads),
        "midlayer.mlp.gate_proj.weight": (inner, width), "midlayer.mlp.up_proj.weight": (inner, width),
        "midlayer.mlp.down_proj.weight": (width, inner), "fc.weight": (width, 3 * width),
        "lm_head.weight": (KIMI["draft_vocab_size"], width), "embed_tokens.weight": (KIMI["vocab_size"], width),
        "midlayer.input_layernorm.weight": (width,), "midlayer.hidden_norm.weight": (width,),
        "midlayer.post_attention_layernorm.weight": (width,), "norm.weight": (width,),
    }  # fmt: skip
    some = torch.randn(1 << 22).mul_(0.01).bfloat16()  # repeated: billions of draws would take minutes
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(KIMI))
        for number, (tensor, shape) in enumerate(shapes.items()):
            count = torch.Size(shape).numel()
            values = some.repeat(-(-count // len(some)))[:count].view(shape)
            save_file({tensor: values}, Path(name) / f"model-{number:02}.safetensors")
        del values
        command = [sys.executable, __file__, "--load", name, "--threads", str(threads)]
        return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1])


def load_and_draft(folder: str) -> float:
    """The peak of this process. ``VmHWM`` begins anew with a program; ``ru_maxrss`` would carry its parent's peak."""
    draft = Draft.load(folder, None, torch.bfloat16)
    states = torch.randn(2048, draft.num_aux_hidden_states, draft.width).bfloat16()
    forward(draft, WIRING, states, torch.randint(KIMI["vocab_size"], (2048,)), 3)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024 / 1e9


def memory_ratio() -> float | None:
    try:
        return importlib.import_module("memory").ratio()
    except ImportError as error:
        print(f"memory_ratio_1000_to_10 was not measured ({error})", flush=True)
        return None


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
    parser.add_argument("--load", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    if options.load:
        print(load_and_draft(options.load))
        return
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
        result["kimi_size_peak_gb"] = kimi_size_peak_gb(options.threads)
        result["memory_ratio_1000_to_10"] = memory_ratio()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
