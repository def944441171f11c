"""Real SGLang engines on a CPU for the tests of the stand-in, one after the other.

``run_jobs`` starts this file as a script in an environment of SGLang's CPU path. The script imports SGLang
once and forks for each job, which saves most of an engine's launch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "eagle3_sglang_cpu.models",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Job:
    """One engine and what it is asked, greedily.

    ``setting`` is (num_steps, topk, num_draft_tokens), or ``None`` for no speculation; ``states`` asks for
    the captured aux states too.
    """

    target: Path
    draft: Path
    setting: tuple[int, int, int] | None
    input_ids: tuple[tuple[int, ...], ...]
    max_new_tokens: int = 48
    states: bool = False


def run_jobs(jobs: list[Job], folder: Path) -> list[list[dict[str, Any]]]:
    """SGLang's answer to each request of each job: ``output_ids`` and ``meta_info``.

    Raises:
        RuntimeError: an engine failed, with the end of its log.
    """
    request, answer, log = folder / "jobs.json", folder / "answers.json", folder / "engine.log"
    request.write_text(json.dumps([asdict(job) for job in jobs], default=str))
    command = [sys.executable, __file__, str(request), str(answer)]
    with log.open("wb") as stream:
        code = subprocess.run(command, env=os.environ | ENVIRONMENT, stdout=stream, stderr=stream).returncode
    if code or not answer.exists():
        raise RuntimeError(f"SGLang failed with exit code {code}:\n{log.read_text()[-3000:]}")
    return json.loads(answer.read_text())


def greedy(model: PreTrainedModel, input_ids: tuple[int, ...], max_new_tokens: int) -> list[int]:
    """What Hugging Face's greedy decoding says, the end-of-sequence token ignored."""
    ids = torch.tensor([input_ids])
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, max_new_tokens=max_new_tokens, **options)[0, len(input_ids) :].tolist()


def _main(request: Path, answer: Path) -> None:
    import sglang

    fork = multiprocessing.get_context("fork")
    answers = []
    for job in json.loads(request.read_text()):
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=_generate, args=(sglang, job, sender))
        process.start()
        sender.close()
        answers.append(receiver.recv())  # EOFError where the engine died
        process.join()
    answer.write_text(json.dumps(answers))


def _generate(sglang: Any, job: dict[str, Any], sender: Any) -> None:
    options: dict[str, Any] = {}
    if job["setting"] is not None:
        steps, topk, tokens = job["setting"]
        options = {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": job["draft"],
            "speculative_num_steps": steps,
            "speculative_eagle_topk": topk,
            "speculative_num_draft_tokens": tokens,
        }
    engine = sglang.Engine(
        model_path=job["target"],
        device="cpu",
        attention_backend="intel_amx",
        dtype="float32",
        context_length=512,
        max_running_requests=4,
        max_total_tokens=4096,
        skip_server_warmup=True,
        enable_return_hidden_states=job["states"],
        log_level="warning",
        **options,
    )
    asked = {"temperature": 0, "max_new_tokens": job["max_new_tokens"], "ignore_eos": True}
    sender.send(engine.generate(input_ids=job["input_ids"], sampling_params=asked, return_hidden_states=job["states"]))
    engine.shutdown()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
