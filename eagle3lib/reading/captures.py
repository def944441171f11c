"""What a running engine fed to the draft, as files: one a request and rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.reading.files import inside
from eagle3lib.reading.tensor_files import read_tensor, read_tensors, write_tensors

AUX = "aux_hidden_states"
SUFFIXES = (".safetensors", ".pt", ".npy")
OWN = ("input_ids", "positions", AUX)


@dataclass(frozen=True, eq=False)
class Capture:
    """The rows that entered the draft for one request on one rank.

    Row t belongs to the token ``input_ids[t]`` at ``positions[t]``. What a capture holds may be wrong: see
    ``eagle3lib.findings.capture_rules``.
    """

    source: str  #: file or folder name
    request: str
    input_ids: Tensor | None  #: [T] int64; only a folder of plain tensors may lack it
    positions: Tensor  #: [T] int64
    stages: Mapping[str, Tensor] = field(repr=False)  #: everything captured by name, ``aux_hidden_states`` among it
    role: str = "draft"
    rank: int = 0
    module: str = "model.fc"

    @property
    def aux_hidden_states(self) -> Tensor:
        """What entered ``fc``, in its order, [T, K * H]."""
        if AUX not in self.stages:
            raise InputError(self.source, f"stages {sorted(self.stages)}", f"a stage {AUX}")
        return self.stages[AUX]

    def streams(self, hidden: int) -> Tensor:
        """The K states side by side, [T, K, H].

        Raises:
            InputError: the captured width is no multiple of the target's hidden size.
        """
        width = self.aux_hidden_states.shape[-1]
        if width % hidden:
            cure = "check that the capture was made with this target."
            raise InputError(f"{self.source} {AUX}", f"width {width}", f"a multiple of the target's {hidden}", cure)
        return self.aux_hidden_states.unflatten(-1, (-1, hidden))


def write_capture(capture: Capture, path: str | Path) -> Path:
    """Write ``capture`` as one safetensors file, in one move; the path."""
    tensors = {**capture.stages, "positions": capture.positions, "input_ids": capture.input_ids}
    metadata = {name: getattr(capture, name) for name in ("role", "rank", "module", "request")}
    return write_tensors(path, tensors, metadata)


def read_capture(folder: str | Path) -> list[Capture]:
    """Every capture in ``folder``, by request and rank.

    Args:
        folder: safetensors files, one a request and rank, or plain tensors of one request named by stage
            (``aux_hidden_states.pt``, ``input_ids.npy``, ...).

    Raises:
        InputError: no capture there, a file that does not open, or a file without the tensors of the format.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError("capture", f"no folder {folder.name}", "a folder with a capture")
    files = sorted(inside(folder, path.name) for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not files:
        cure = "if requests were sent to a server, it never ran the draft's fc: is the algorithm EAGLE3, with a draft?"
        raise InputError(f"capture {folder.name}", "no tensor file", "safetensors or plain tensors", cure)
    opened = {path: read_tensors(path) for path in files if path.suffix == ".safetensors"}
    if any(AUX in tensors and len(tensors) > 1 for tensors, _ in opened.values()):
        for path, (tensors, _) in opened.items():
            if missing := [name for name in OWN if name not in tensors]:
                raise InputError(f"capture {path.name}", f"no {', '.join(missing)}", f"the tensors {', '.join(OWN)}")
        captures = [_capture(path.name, path.stem, *content) for path, content in opened.items()]
    else:
        captures = [_capture(folder.name, folder.name, {path.stem: read_tensor(path) for path in files}, {})]
    return sorted(captures, key=lambda capture: (capture.request, capture.rank))


def _capture(source: str, request: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Capture:
    rank = metadata.get("rank", "0")
    if not rank.isdecimal():
        raise InputError(f"capture {source} metadata rank", rank, "a whole number")
    stages = _stages(source, tensors)
    rows = {name: tensors[name].flatten().long() for name in ("input_ids", "positions") if name in tensors}
    return Capture(
        source=source,
        request=metadata.get("request", request),
        input_ids=rows.get("input_ids"),
        positions=rows["positions"] if "positions" in rows else torch.arange(len(next(iter(stages.values())))),
        stages=stages,
        role=metadata.get("role", "draft"),
        rank=int(rank),
        module=metadata.get("module", "model.fc"),
    )


def _stages(source: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Everything but ids and positions, without batch axes of one; [T, K, H] becomes [T, K * H]."""
    stages = {name: value for name, value in tensors.items() if name not in ("input_ids", "positions")}
    if not stages:
        raise InputError(f"capture {source}", f"only {sorted(tensors)}", f"at least {AUX}")
    for name, value in stages.items():
        if value.dim() == 3 and len(value) == 1:
            stages[name] = value[0]
    if AUX in stages:
        aux = stages[AUX].flatten(1) if stages[AUX].dim() == 3 else stages[AUX]
        if aux.dim() != 2:
            raise InputError(f"capture {source} {AUX}", f"shape {list(aux.shape)}", "[T, K * H]")
        stages[AUX] = aux
    return stages
