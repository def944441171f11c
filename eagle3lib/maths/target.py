"""A target: the three tensors a draft needs, and where it is small enough to run here, its states and words.

The target runs through transformers. Its residual stream is taken before the first block and after each
block, never from ``output_hidden_states``, whose last entry is already normed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from eagle3lib.errors import InputError
from eagle3lib.maths.kernels import rms_norm
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.files import replacing
from eagle3lib.reading.target_config import TargetConfig

#: Precision in which the whole target runs; prompts that are continued side by side.
DTYPE, BATCH = torch.float32, 8


@dataclass(frozen=True)
class Target:
    """The three tensors of a target that a draft's numbers need; the rest is read only where the target is run.

    ``cache``: the folder that keeps computed states; without it they are computed anew.
    """

    embedding: Tensor  # [V_t, H_t]
    lm_head: Tensor  # [V_t, H_t]
    norm: Tensor  # [H_t]
    eps: float
    folder: Path | None = None
    cache: Path | None = None

    @classmethod
    def open(
        cls, folder: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu",
        cache: str | Path | None = None,
    ) -> Target:  # fmt: skip
        """Raises ``InputError`` where one of them is not in the checkpoint."""
        checkpoint, config = Checkpoint.open(folder), TargetConfig.open(folder)

        def read(*endings: str) -> Tensor:
            info = checkpoint.find(*endings)
            if info is None:
                raise InputError(f"{Path(folder).name}: {endings[0]}", "no such tensor", "a tensor of the target")
            return checkpoint.tensor(info.name).to(device, dtype)

        embedding = read("embed_tokens.weight")
        lm_head = embedding if config.tied else read("lm_head.weight")
        norm = read("model.norm.weight", "norm.weight")
        return cls(embedding, lm_head, norm, config.rms_norm_eps, Path(folder), Path(cache) if cache else None)

    def logits(self, last: Tensor) -> Tensor:
        """``[T, V]`` from the last block's output ``[T, H_t]``, before the final norm."""
        return rms_norm(last, self.norm, self.eps) @ self.lm_head.T

    def states(self, input_ids: Sequence[int] | Tensor, boundaries: Sequence[int] | None = None) -> Tensor:
        """``target_states`` of this target, kept in its cache."""
        return target_states(self._runnable(), input_ids, boundaries, self.cache)

    def greedy(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop: bool = True) -> list[list[int]]:
        """``greedy`` of this target."""
        return greedy(self._runnable(), prompts, max_new_tokens, stop)

    def model(self) -> Any:
        """The whole target in transformers."""
        return model(str(self._runnable()))

    def _runnable(self) -> Path:
        if self.folder is None:
            raise InputError("target", "three tensors", "the target's folder, to run it")
        return self.folder


def target_states(
    folder: str | Path,
    input_ids: Sequence[int] | Tensor,
    boundaries: Sequence[int] | None = None,
    cache_dir: str | Path | None = None,
) -> Tensor:
    """The target's residual stream ``[T, K, H_t]`` at ``boundaries``, or at all ``0 .. n`` of them.

    With ``cache_dir`` all boundaries are stored once, by the content of config, weights and tokens, and
    only the asked ones are read again.

    Raises:
        InputError: a token id or a boundary is out of range, or transformers cannot load the target.
    """
    ids = torch.as_tensor(input_ids, dtype=torch.long)
    config = TargetConfig.open(folder)
    wanted = list(range(config.layers + 1)) if boundaries is None else list(boundaries)
    if not wanted or not all(0 <= k <= config.layers for k in wanted):
        raise InputError("boundaries", wanted, f"some of 0 to {config.layers}")
    if not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        found = f"ids from {int(ids.min())} to {int(ids.max())}" if len(ids) else "no ids"
        raise InputError("input_ids", found, f"ids of the target's vocabulary, 0 to {config.vocab_size - 1}")
    if cache_dir is None:
        states = _run(model(str(folder)), ids)
        return torch.stack([states[k] for k in wanted], dim=1)
    path = Path(cache_dir) / f"{_key(Path(folder), ids)}.safetensors"
    if not path.is_file():
        states = _run(model(str(folder)), ids)
        with replacing(path) as partial:
            save_file({str(k): state for k, state in enumerate(states)}, partial)
    with safe_open(path, framework="pt") as file:
        return torch.stack([file.get_tensor(str(k)) for k in wanted], dim=1)


@torch.inference_mode()
def greedy(
    folder: str | Path, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop: bool = True
) -> list[list[int]]:
    """Greedy continuations of token ids, without the prompts.

    With ``stop`` each ends with the first end-of-sequence token, if it says one; without, all run to
    ``max_new_tokens``, as requests with ``ignore_eos`` do.
    """
    target = model(str(folder))
    ends = target.generation_config.eos_token_id
    ends = set() if ends is None or not stop else {ends} if isinstance(ends, int) else set(ends)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # alike lengths share a batch
    said: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), BATCH):
        group = order[start : start + BATCH]
        width = max(len(prompts[i]) for i in group)
        ids = torch.tensor([[0] * (width - len(prompts[i])) + list(prompts[i]) for i in group])
        mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in group])
        out = target.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new_tokens,
            eos_token_id=sorted(ends) or None, pad_token_id=min(ends, default=0),
        )  # fmt: skip
        for i, row in zip(group, out[:, width:].tolist(), strict=True):
            end = next((n + 1 for n, token in enumerate(row) if token in ends), len(row))
            said[i] = row[:end]
    return said


@lru_cache(maxsize=1)
def model(folder: str) -> Any:
    """The whole target in transformers; the last one is kept."""
    from transformers import AutoModelForCausalLM

    _check_fits(Path(folder))
    try:
        loaded, loading = AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPE, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(Path(folder).name, reason, "a target that transformers can load") from error
    if missing := sorted(loading["missing_keys"]):  # transformers fills them with random numbers
        found = f"{len(missing)} tensors missing, {missing[0]} among them"
        cure = "give the whole target, or samples that hold its states: then only embedding and head are read"
        raise InputError(Path(folder).name, found, "all weights of the target", cure)
    return loaded.eval()


def _check_fits(folder: Path) -> None:
    """Running out of memory kills the process and cannot be caught, so it is told before."""
    values = sum(math.prod(info.shape) for info in Checkpoint.open(folder).tensors.values())
    needed, free = values * DTYPE.itemsize, psutil.virtual_memory().available
    if needed > free:
        raise InputError(
            folder.name, f"{needed / 1e9:.0f} GB of weights in {DTYPE}", f"less than the free {free / 1e9:.0f} GB",
            "give samples that hold the target's states: then only its embedding and head are read",
        )  # fmt: skip


@torch.inference_mode()
def _run(target: Any, ids: Tensor) -> list[Tensor]:
    """Boundaries ``0 .. n``, each ``[T, H_t]``, seen by hooks on the blocks."""
    blocks: nn.ModuleList = target.get_decoder().layers
    seen: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args[0] if args else kwargs["hidden_states"])[0].clone())

    def after(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        seen.append((out[0] if isinstance(out, tuple) else out)[0].clone())

    hooks = [blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
    hooks += [block.register_forward_hook(after) for block in blocks]
    try:
        target.get_decoder()(input_ids=ids[None], use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _key(folder: Path, ids: Tensor) -> str:
    """What the states depend on: config, weights (by headers, sizes and times), tokens and precision."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    checkpoint = Checkpoint.open(folder)
    for info in sorted(checkpoint.tensors.values(), key=lambda info: info.name):
        digest.update(f"{info.name} {info.shape} {info.dtype}".encode())
    for file in sorted({info.file for info in checkpoint.tensors.values()}):
        digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    digest.update(f"{DTYPE} {ids.tolist()}".encode())
    return digest.hexdigest()[:32]
