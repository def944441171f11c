"""Does notebook 02's work grow with the number of samples? Peak memory of 1,000 beside that of 10.

    python benchmarks/memory.py

Each number of samples is read, surveyed, measured and searched in a process of its own, on files of a random draft
and target. The last line is JSON; a ratio above 1.05 exits with 1.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

FEW, MANY = 10, 1000
#: 0.4 MB of states a file: a thousand held would nearly double what the process needs.
TOKENS, WIDTH, VOCAB, SLOTS = 256, 128, 1024, 3
BOUNDARIES = (2, 5, 8)


def ratio() -> float:
    """Peak of ``MANY`` samples over that of ``FEW``."""
    return measure()["memory_ratio_1000_to_10"]


def measure() -> dict[str, float]:
    """The ratio, and both peaks in MB."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        few, many = (_peak_of(Path(folder), count) for count in (FEW, MANY))
    return {"memory_ratio_1000_to_10": round(many / few, 4), "mb_10": round(few, 1), "mb_1000": round(many, 1)}


def _write(folder: Path) -> None:
    """``MANY`` names for ten files: the disk needs to hold no more than that."""
    import torch

    from eagle3lib.reading.samples import Sample, write_sample

    draw = torch.Generator().manual_seed(0)
    for i in range(FEW):
        tokens = torch.randint(VOCAB, (TOKENS,), generator=draw)
        states = torch.randn(TOKENS, SLOTS, WIDTH, generator=draw)
        sample = Sample("s", tokens, torch.arange(TOKENS) >= 64, 64, states=states, boundaries=BOUNDARIES)
        write_sample(folder / str(FEW) / f"{i:04}.safetensors", sample)
    (folder / str(MANY)).mkdir()
    for i in range(MANY):
        os.link(folder / str(FEW) / f"{i % FEW:04}.safetensors", folder / str(MANY) / f"{i:04}.safetensors")


def _peak_of(folder: Path, count: int) -> float:
    said = subprocess.run(
        [sys.executable, __file__, str(folder / str(count))], check=True, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )  # fmt: skip
    return float(said.stdout.split()[-1])


def work(samples: Path) -> None:
    """All that notebook 02 does with samples, then this process's peak in MB."""
    import torch

    from eagle3lib.maths.draft_weights import Draft, Layer, Linear
    from eagle3lib.maths.target import Target
    from eagle3lib.maths.wiring import Wiring
    from eagle3lib.measuring.evaluation import evaluate_all
    from eagle3lib.measuring.last_state import target_argmax_of
    from eagle3lib.measuring.sample_states import StatesDataset
    from eagle3lib.measuring.survey import survey
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
        fc=Linear(random(WIDTH, SLOTS * WIDTH)), input_norm=None, fc_norms=(), layers=(layer,), norm=ones,
        lm_head=random(VOCAB, WIDTH), own_embedding=None, target_embedding=target.embedding, d2t=None,
        num_aux_hidden_states=SLOTS,
        head_dim=WIDTH // 8, eps=1e-6, max_positions=2048,
    )  # fmt: skip
    wiring = Wiring(BOUNDARIES)
    dataset = StatesDataset(read_samples(samples, WIDTH, vocab=VOCAB), target)
    known = survey(dataset, BOUNDARIES, None, target)
    found = evaluate_all(draft, wiring, dataset, 3, target_argmax_of(9, target, None, known.last))
    search_wiring(draft, wiring, dataset.spread(16), 3)
    assert len(found.requests) == len(known.lengths) == int(samples.name)
    print(_peak())


def _peak() -> float:
    """Peak resident memory in MB. ``ru_maxrss`` would count what the parent held before the start."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)  # macOS counts bytes


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(Path(sys.argv[1]))
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        measured = measure()
        print(json.dumps(measured))
        sys.exit(measured["memory_ratio_1000_to_10"] > 1.05)
