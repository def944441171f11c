"""Peak memory of notebooks 02, 03 and 04: does it grow with the samples, and does a Kimi-sized pair fit?

    python benchmarks/memory.py [--no-kimi]

- 02: 1,000 samples beside 10 are read, surveyed, measured and searched, on files of a random draft and target.
- 03 and 04: a draft of Kimi-K2's size (7168 wide, 163,840 words) beside the three tensors of its target, in bfloat16
  on the CPU. Most values of the files are holes, since only their size matters here: 10 GB of files take no disk.

Each works in a process of its own. The last line is JSON; a ratio above 1.05 or a peak above 8 GB exits with 1.
"""

from __future__ import annotations

import json
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

FEW, MANY = 10, 1000
#: 0.4 MB of states a file: a thousand held would nearly double what the process needs.
TOKENS, WIDTH, VOCAB, AUX_STATES = 256, 128, 1024, 3
BOUNDARIES = (2, 5, 8)
#: The most that 03 and 04 may take with a Kimi-sized pair, in GB of 1e9 bytes.
KIMI_GB = 8.0
#: The draft of Kimi-K2 as published (AQ-MedAI/Kimi-K2-Instruct-eagle3), and its target.
KIMI = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 7168, "vocab_size": 163840,
    "intermediate_size": 18432, "num_hidden_layers": 1, "num_attention_heads": 64, "num_key_value_heads": 64,
    "head_dim": 128, "draft_vocab_size": 32000, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}  # fmt: skip
KIMI_TARGET = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 7168, "vocab_size": 163840,
    "num_hidden_layers": 61, "rms_norm_eps": 1e-6, "rope_theta": 5e4, "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}  # fmt: skip


def ratio() -> float:
    """Peak of ``MANY`` samples over that of ``FEW``."""
    return samples_peaks()["memory_ratio_1000_to_10"]


def samples_peaks() -> dict[str, float]:
    """The ratio, and both peaks in MB."""
    with tempfile.TemporaryDirectory() as folder:
        _write_samples(Path(folder))
        few, many = (_peak_of("02", Path(folder) / str(count)) for count in (FEW, MANY))
    return {"memory_ratio_1000_to_10": round(many / few, 4), "mb_10": round(few, 1), "mb_1000": round(many, 1)}


def kimi_peaks() -> dict[str, float]:
    """Peaks in GB with a Kimi-sized pair: of a forward pass over 2048 tokens alone, of 03 and of 04."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_kimi(folder)
        peaks = {f"kimi_{work}_gb": _peak_of(work, folder) / 1e3 for work in ("forward", "03", "04")}
    return {name: round(peak, 2) for name, peak in peaks.items()}


def _write_samples(folder: Path) -> None:
    """``MANY`` names for ten files: the disk needs to hold no more than that."""
    import torch

    from eagle3lib.reading.samples import Sample, write_sample

    draw = torch.Generator().manual_seed(0)
    for i in range(FEW):
        tokens = torch.randint(VOCAB, (TOKENS,), generator=draw)
        states = torch.randn(TOKENS, AUX_STATES, WIDTH, generator=draw)
        sample = Sample("s", tokens, torch.arange(TOKENS) >= 64, 64, states=states, boundaries=BOUNDARIES)
        write_sample(folder / str(FEW) / f"{i:04}.safetensors", sample)
    (folder / str(MANY)).mkdir()
    for i in range(MANY):
        os.link(folder / str(FEW) / f"{i % FEW:04}.safetensors", folder / str(MANY) / f"{i:04}.safetensors")


def _write_kimi(folder: Path) -> None:
    """A draft, the three tensors of its target, a sample with states and a capture."""
    import torch

    from eagle3lib.reading.captures import AUX, Capture, write_capture
    from eagle3lib.reading.samples import Sample, write_sample

    width, vocab = KIMI["hidden_size"], KIMI["vocab_size"]
    heads, inner = KIMI["num_attention_heads"] * KIMI["head_dim"], KIMI["intermediate_size"]
    layer = {f"self_attn.{name}_proj": (heads, 2 * width) for name in "qkv"} | {
        "self_attn.o_proj": (width, heads), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner), "input_layernorm": (width,), "hidden_norm": (width,),
        "post_attention_layernorm": (width,),
    }  # fmt: skip
    draft = {f"midlayer.{name}": shape for name, shape in layer.items()} | {
        "fc": (width, 3 * width), "norm": (width,), "lm_head": (KIMI["draft_vocab_size"], width),
        "embed_tokens": (vocab, width),
    }  # fmt: skip
    target = {"model.embed_tokens": (vocab, width), "lm_head": (vocab, width), "model.norm": (width,)}
    for name, config, shapes in (("draft", KIMI, draft), ("target", KIMI_TARGET, target)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
        _write_sparse(folder / name / "model.safetensors", {f"{key}.weight": shape for key, shape in shapes.items()})
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab, (TOKENS,), generator=draw)
    states = torch.randn(TOKENS, AUX_STATES, width, generator=draw).bfloat16()
    sample = Sample("s", tokens, torch.arange(TOKENS) >= 64, 64, states=states, boundaries=(2, 30, 58))
    write_sample(folder / "samples" / "0.safetensors", sample)
    stages = {AUX: states.flatten(1), "embedded_ids": tokens.roll(-1), "norm": torch.zeros(TOKENS, width)}
    write_capture(Capture("c", "c", tokens, torch.arange(TOKENS), stages), folder / "capture" / "0.safetensors")


def _write_sparse(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A safetensors file in bfloat16: random values at the start of each tensor, zeros (holes of the file) after."""
    import torch

    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, entry in header.items():
            values = torch.randn(min(math.prod(shapes[name]), 1 << 20)).mul_(0.01).bfloat16()
            file.seek(8 + len(text) + entry["data_offsets"][0])
            file.write(values.view(torch.uint8).numpy().tobytes())
        file.truncate(8 + len(text) + end)


def _peak_of(work: str, folder: Path) -> float:
    done = subprocess.run(
        [sys.executable, __file__, work, str(folder)], check=True, capture_output=True, text=True,
        env={"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def work_02(samples: Path) -> None:
    """All that notebook 02 does with samples."""
    import torch

    from eagle3lib.maths.draft_weights import Draft, Layer, Linear
    from eagle3lib.maths.target import Target
    from eagle3lib.maths.wiring import Wiring
    from eagle3lib.measuring.accuracy import evaluate_all
    from eagle3lib.measuring.sample_states import StatesDataset
    from eagle3lib.measuring.survey import survey, target_argmax_of
    from eagle3lib.measuring.wiring_search import search_wiring
    from eagle3lib.reading.samples import read_samples

    draw = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * 0.05

    ones, wide = torch.ones(WIDTH), 2 * WIDTH
    layer = Layer(
        q_proj=Linear(random(WIDTH, wide)), k_proj=Linear(random(WIDTH, wide)), v_proj=Linear(random(WIDTH, wide)),
        o_proj=Linear(random(WIDTH, WIDTH)), gate_proj=random(wide, WIDTH), up_proj=random(wide, WIDTH),
        down_proj=random(WIDTH, wide),
        post_attention_layernorm=ones, input_layernorm=ones, hidden_norm=ones,
    )  # fmt: skip
    target = Target(random(VOCAB, WIDTH), random(VOCAB, WIDTH), ones, 1e-6)
    draft = Draft(
        fc=Linear(random(WIDTH, AUX_STATES * WIDTH)), input_norm=None, fc_norms=(), layers=(layer,), norm=ones,
        lm_head=random(VOCAB, WIDTH), own_embedding=None, target_embedding=target.embedding, d2t=None,
        num_aux_hidden_states=AUX_STATES, head_dim=WIDTH // 8, eps=1e-6, max_positions=2048,
    )  # fmt: skip
    wiring = Wiring(BOUNDARIES)
    dataset = StatesDataset(read_samples(samples, WIDTH, vocab=VOCAB), target)
    known = survey(dataset, BOUNDARIES, None, target)
    found = evaluate_all(draft, wiring, dataset, 3, target_argmax_of(9, target, None, known.last))
    search_wiring(draft, wiring, dataset.spread(16), 3)
    assert len(found.requests) == len(known.lengths) == int(samples.name)


def work_forward(folder: Path) -> None:
    """The draft alone: 2048 tokens, 3 depths."""
    import torch

    from eagle3lib.maths.draft import forward
    from eagle3lib.maths.draft_weights import Draft
    from eagle3lib.maths.wiring import Wiring

    draft = Draft.load(folder / "draft", None, torch.bfloat16)
    states, tokens = torch.randn(2048, AUX_STATES, draft.width).bfloat16(), torch.randint(KIMI["vocab_size"], (2048,))
    forward(draft, Wiring((2, 30, 58), rope_theta=1e6, embedding="own"), states, tokens, 3)


def work_03(folder: Path) -> None:
    """What notebook 03 predicts for samples, of a chain and of a tree."""
    from eagle3lib.findings.offline import break_down, open_pair

    _, pair = open_pair(str(folder / "draft"), str(folder / "target"), "", "sglang==0.5.23", folder, "bfloat16")
    for setting in ((3, 1, 4), (3, 4, 8)):
        found = break_down(pair, str(folder / "samples"), setting)
        assert found.sources, found.left_out


def work_04(folder: Path) -> None:
    """Notebook 04's two comparisons: with the states of samples, and stage by stage with our forward pass."""
    from eagle3lib.findings.capture_rules import replayed
    from eagle3lib.findings.config_rules import inspect
    from eagle3lib.maths.target import Target
    from eagle3lib.measuring.streams import from_samples
    from eagle3lib.reading.captures import read_capture

    inspection = inspect(str(folder / "draft"), str(folder / "target"), "", "sglang==0.5.23")
    captures = read_capture(folder / "capture")
    from_samples(captures, folder / "samples", KIMI["hidden_size"], layers=61)
    stages, reason = replayed(captures, str(folder / "draft"), Target.open(folder / "target", "bfloat16"), inspection)
    assert stages, reason


WORK = {"02": work_02, "forward": work_forward, "03": work_03, "04": work_04}


def _peak() -> float:
    """Peak resident memory in MB of 1e6 bytes. ``ru_maxrss`` would count what the parent held before the start."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # macOS counts bytes


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    measured = samples_peaks()
    if "--no-kimi" not in sys.argv:
        measured |= kimi_peaks()
    print(json.dumps(measured))
    large = [name for name, peak in measured.items() if name.startswith("kimi") and peak > KIMI_GB]
    sys.exit(measured["memory_ratio_1000_to_10"] > 1.05 or bool(large))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in WORK:
        WORK[sys.argv[1]](Path(sys.argv[2]))
        print(_peak())
    else:
        main()
