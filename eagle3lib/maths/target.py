"""A target: the three tensors a draft needs, and where the whole fits this machine, its states and its text.

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
from torch.nn.utils.rnn import pad_sequence

from eagle3lib.errors import InputError
from eagle3lib.maths.device import resolve_device, resolve_dtype
from eagle3lib.maths.draft_weights import Draft
from eagle3lib.maths.kernels import lm_head_logits, rms_norm
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.files import replacing
from eagle3lib.reading.target_config import TargetConfig

#: Prompts that are continued side by side.
BATCH = 8
#: What to do where the whole target cannot run.
GIVE_STATES = "give samples that hold the target's states: then only its embedding and head are read"


@dataclass(frozen=True)
class Target:
    """The three tensors of a target that a draft's numbers need; the rest is read only where the target is run.

    The embedding and the head keep the precision of their file, on a CPU memory-mapped: rows and blocks of them are
    cast when they are used. Numbers are computed in the dtype and on the device of ``norm``.

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
        cls, folder: str | Path, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu",
        cache: str | Path | None = None,
    ) -> Target:  # fmt: skip
        """``dtype`` and ``device`` as ``maths.device`` resolves them; unchanged files are read once.

        Raises:
            InputError: one of the tensors is not in the checkpoint, or dtype or device is not known.
        """
        place = resolve_device(device)
        checkpoint, config = Checkpoint.open(folder), TargetConfig.open(folder)
        embedding, lm_head, norm = _tensors(Path(folder), _stamp(checkpoint), config.tied, place)
        norm = norm.to(resolve_dtype(dtype, place))
        return cls(embedding, lm_head, norm, config.rms_norm_eps, Path(folder), Path(cache) if cache else None)

    def load_draft(self, folder: str | Path) -> Draft:
        """The draft in ``folder`` beside this target, in its dtype and on its device."""
        return Draft.load(folder, self.embedding, self.norm.dtype, self.norm.device, self.lm_head)

    def to_compute(self, states: Tensor) -> Tensor:
        """Any tensor in the dtype and on the device of this target."""
        return states.to(self.norm.device, self.norm.dtype)

    def normed(self, last: Tensor) -> Tensor:
        """The last block's output ``[T, H_t]`` after the final norm."""
        return rms_norm(self.to_compute(last), self.norm, self.eps)

    def logits(self, last: Tensor) -> Tensor:
        """``[T, V]`` from the last block's output ``[T, H_t]``, before the final norm."""
        return lm_head_logits(self.normed(last), self.lm_head)

    def states(self, input_ids: Sequence[int] | Tensor, boundaries: Sequence[int] | None = None) -> Tensor:
        """The residual stream ``[T, K, H_t]``, on the CPU, at ``boundaries``, or at all ``0 .. n`` of them.

        With a cache all boundaries are stored once, under a hash of config, weights and tokens, and only the wanted
        ones are read again.

        Raises:
            InputError: a token id or a boundary is out of range, or transformers cannot load the target.
        """
        folder, ids = self._folder(), torch.as_tensor(input_ids, dtype=torch.long)
        config = TargetConfig.open(folder)
        wanted = list(range(config.layers + 1)) if boundaries is None else list(boundaries)
        if not wanted or not all(0 <= k <= config.layers for k in wanted):
            raise InputError("boundaries", wanted, f"some of 0 to {config.layers}")
        if not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
            found = f"ids from {int(ids.min())} to {int(ids.max())}" if len(ids) else "no ids"
            raise InputError("input_ids", found, f"ids of the target's vocabulary, 0 to {config.vocab_size - 1}")
        if self.cache is None:
            states = _run(self.model(), ids)
            return torch.stack([states[k] for k in wanted], dim=1)
        path = self.cache / f"{_key(folder, ids, self.norm.dtype)}.safetensors"
        if not path.is_file():
            with replacing(path) as partial:
                save_file({str(k): state for k, state in enumerate(_run(self.model(), ids))}, partial)
        with safe_open(path, framework="pt") as file:
            return torch.stack([file.get_tensor(str(k)) for k in wanted], dim=1)

    @torch.inference_mode()
    def greedy(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop: bool = True) -> list[list[int]]:
        """Greedy continuations of token ids, without the prompts.

        With ``stop`` each ends with the first end-of-sequence token, if there is one; without, all run to
        ``max_new_tokens``, as requests with ``ignore_eos`` do.
        """
        model = self.model()
        ends = model.generation_config.eos_token_id
        ends = set() if ends is None or not stop else {ends} if isinstance(ends, int) else set(ends)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # alike lengths share a batch
        outputs: list[list[int]] = [[] for _ in prompts]
        for start in range(0, len(order), BATCH):
            group = order[start : start + BATCH]
            rows = [torch.tensor(prompts[i], dtype=torch.long) for i in group]
            ids = pad_sequence(rows, batch_first=True, padding_side="left")
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")
            out = model.generate(
                ids.to(model.device), attention_mask=mask.to(model.device), do_sample=False,
                max_new_tokens=max_new_tokens, eos_token_id=sorted(ends) or None, pad_token_id=min(ends, default=0),
            )  # fmt: skip
            for i, row in zip(group, out[:, ids.shape[1] :].tolist(), strict=True):
                end = next((n + 1 for n, token in enumerate(row) if token in ends), len(row))
                outputs[i] = row[:end]
        return outputs

    def model(self) -> Any:
        """The whole target in transformers; the last one is kept."""
        return _model(self._folder(), self.norm.dtype, self.norm.device)

    def _folder(self) -> Path:
        if self.folder is None:
            raise InputError("target", "three tensors", "the target's folder, to run it")
        return self.folder


@lru_cache(maxsize=2)
def _tensors(folder: Path, stamp: object, tied: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Embedding, head and final norm; ``stamp`` is there so that changed files are read anew."""
    checkpoint = Checkpoint.open(folder)

    def read(*endings: str) -> Tensor:
        info = checkpoint.find(*endings)
        if info is None:
            raise InputError(f"{folder.name}: {endings[0]}", "no such tensor", "a tensor of the target")
        return checkpoint.tensor(info.name).to(device)

    embedding = read("embed_tokens.weight")
    return embedding, embedding if tied else read("lm_head.weight"), read("model.norm.weight", "norm.weight")


@lru_cache(maxsize=1)
def _model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    _check_fits(folder, dtype, device)
    try:
        loaded, loading = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(folder.name, reason, "a target that transformers can load") from error
    if missing := sorted(loading["missing_keys"]):  # transformers fills them with random numbers
        found = f"{len(missing)} tensors missing, {missing[0]} among them"
        raise InputError(folder.name, found, "all weights of the target", f"give the whole target, or {GIVE_STATES}")
    return loaded.eval().to(device)


def _check_fits(folder: Path, dtype: torch.dtype, device: torch.device) -> None:
    """Running out of memory kills the process and cannot be caught, so that it is refused before."""
    needed = sum(math.prod(info.shape) for info in Checkpoint.open(folder).tensors.values()) * dtype.itemsize
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        found = f"{needed / 1e9:.0f} GB of weights in {dtype}"
        raise InputError(folder.name, found, f"less than the free {free / 1e9:.0f} GB", GIVE_STATES)


@torch.inference_mode()
def _run(model: Any, ids: Tensor) -> list[Tensor]:
    """Boundaries ``0 .. n``, each ``[T, H_t]``, copied to the CPU by hooks on the blocks."""
    blocks: nn.ModuleList = model.get_decoder().layers
    seen: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args[0] if args else kwargs["hidden_states"])[0].to("cpu", copy=True))

    def after(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        seen.append((out[0] if isinstance(out, tuple) else out)[0].to("cpu", copy=True))

    hooks = [blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
    hooks += [block.register_forward_hook(after) for block in blocks]
    try:
        model.get_decoder()(input_ids=ids[None].to(model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _stamp(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Name, size and time of each file of weights."""
    files = sorted({info.file for info in checkpoint.tensors.values()})
    return tuple(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)


def _key(folder: Path, ids: Tensor, dtype: torch.dtype) -> str:
    """What the states depend on: config, weights (by sizes and times), tokens and precision."""
    parts = ((folder / "config.json").read_bytes(), _stamp(Checkpoint.open(folder)), dtype, ids.tolist())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
