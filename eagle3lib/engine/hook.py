"""The forward hook that SGLang loads to write down what enters the draft.

SGLang (``srt/model_executor/hook_manager.py`` ``register_forward_hooks``) calls ``hook_factory`` once per
hook specification and per model runner, target and draft alike, and tells a hook neither the module's name
nor the model's role. Hence one specification per stage, with the stage in its ``config``, and one shared
recorder:

* ``model.fc`` and the norms before it exist in the draft only and run first: they open a pass. They run in
  passes that take target states (prefill, the extension after each verify step), not in the draft's own
  decode passes. What the engine delivers is written, so before those norms where there are any.
* the stages within the draft add to the open pass; the same modules of the target find none open.
* ``model`` closes the pass: its inputs are ``(input_ids, positions, forward_batch, ...)``.

Row ``i`` of a pass: ``embedded_ids[i]`` is the token whose embedding is paired with the state of position
``positions[i]``, normally the token at ``positions[i] + 1``. Rows after a verify step include rejected
drafts; a later pass repeats their positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from eagle3lib.reading.captures import AUX
from eagle3lib.reading.files import replacing

FACTORY = "eagle3lib.engine.hook:hook_factory"
#: Bounds what a forgotten server can write: with three states of width 4096 in bf16, about 0.6 GB.
MAX_ROWS = 16384
_QKV = ("model.layers.0.self_attn.qkv_proj", "model.midlayer.self_attn.fused_qkv_a_proj_with_mqa")
_O = ("model.layers.0.self_attn.o_proj", "model.midlayer.self_attn.o_proj")
#: Stage -> (modules in SGLang's draft, of Llama or MLA, which of their tensors: "in"/"out" and its index), as they run.
STAGES: Mapping[str, tuple[tuple[str, ...], str, int]] = {
    AUX: (("model.input_norm", "model.fc_norm.*", "model.fc"), "in", 0),  # [T, K * H]
    "fc": (("model.fc",), "out", 0),  # [T, H]
    "qkv_input": (_QKV, "in", 0),  # [T, 2 * H]
    "attention_output": (_O, "out", 0),  # [T, H]
    "norm": (("model.norm",), "out", 0),  # [T, H]
    "residual": (("model.norm",), "out", 1),  # [T, H], the state before the final norm
}

Hook = Callable[[nn.Module, tuple[Any, ...], Any], None]


def specifications(folder: str | Path, max_rows: int = MAX_ROWS) -> str:
    """The JSON for ``--forward-hooks``: write every stage of at most ``max_rows`` rows to ``folder``.

    ``aux_hidden_states`` comes first: hooks on one module run in this order.
    """
    config = {"folder": str(Path(folder).resolve()), "max_rows": max_rows}
    hooks = [
        {"name": name, "target_modules": list(modules), "hook_factory": FACTORY, "config": config | {"stage": name}}
        for name, (modules, _, _) in STAGES.items()
    ]
    close = {"name": "pass", "target_modules": ["model"], "hook_factory": FACTORY, "config": config | {"stage": ""}}
    return json.dumps([*hooks, close])


class Recorder:
    """Gathers the stages of one draft pass and writes each finished pass as one file."""

    def __init__(self, folder: Path, max_rows: int) -> None:
        self.folder, self.max_rows = folder, max_rows
        self.stages: dict[str, list[Tensor]] | None = None
        self.passes = self.rows = 0

    def add(self, stage: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if stage == AUX:
            if self.stages is None:
                self.stages = {}
            elif "Linear" in type(module).__name__:  # torch's or, in MLA drafts, SGLang's own
                return  # fc, after norms whose inputs are already written down
        if self.stages is None:
            return
        _, side, index = STAGES[stage]
        values = inputs if side == "in" else output if isinstance(output, tuple) else (output,)
        # A copy: SGLang's fused norms write into their inputs afterwards.
        self.stages.setdefault(stage, []).append(values[index].detach().to("cpu", copy=True))

    def close(self, inputs: tuple[Any, ...]) -> None:
        parts, self.stages = self.stages, None
        if parts is None or self.rows >= self.max_rows:
            return
        ids, positions, batch = inputs[:3]
        rows = len(ids)
        stages = {name: torch.cat(values, -1) for name, values in parts.items()}  # fc_norm: one part a state
        if rows == 0 or any(len(value) != rows for value in stages.values()):
            return  # an idle batch, or what a failed pass left
        self.rows += rows
        self.passes += 1
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        tensors = stages | {"embedded_ids": ids.detach().cpu().long(), "positions": positions.detach().cpu().long()}
        metadata = {"rank": str(rank), "requests": str(len(batch.seq_lens))}
        with replacing(self.folder / f"rank{rank}-pass{self.passes:06d}.safetensors") as partial:
            save_file({name: value.contiguous() for name, value in tensors.items()}, partial, metadata)


_recorders: dict[Path, Recorder] = {}


def hook_factory(config: Mapping[str, Any]) -> Hook:
    """What SGLang calls with one specification's ``config``: ``folder``, ``max_rows`` and ``stage``."""
    folder = Path(config["folder"])
    recorder = _recorders.setdefault(folder, Recorder(folder, int(config["max_rows"])))
    stage: str = config["stage"]

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if stage:
            recorder.add(stage, module, inputs, output)
        else:
            recorder.close(inputs)

    return hook
