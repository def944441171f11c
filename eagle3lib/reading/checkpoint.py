"""The tensors of a checkpoint: names, shapes and dtypes from headers, values one at a time.

Nothing here executes what a file contains: safetensors headers are checked by the ``safetensors`` package,
pickles are read by torch's weights-only unpickler, and no path may leave the folder.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open

from eagle3lib.errors import InputError, UnsafeFile
from eagle3lib.reading.files import inside, read_object
from eagle3lib.reading.tensor_files import DAMAGE, first_line

#: safetensors dtype names of the torch dtypes found in ``.bin`` files.
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
#: The most rows of a sample.
MOST_ROWS = 1024
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as its file's header declares it; ``dtype`` is safetensors' name, such as ``BF16``."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path


@dataclass(frozen=True)
class Checkpoint:
    """A folder of weights. ``absent`` maps tensors that the index names to the file that is not there."""

    folder: Path
    tensors: Mapping[str, TensorInfo]
    absent: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: str | Path, only: tuple[str, ...] = ()) -> Checkpoint:
        """Read the headers of ``folder``'s safetensors files, or of its ``.bin`` files if it has none.

        With name endings in ``only``, files that hold no such tensor by the index's word stay closed, and
        their tensors out of the result: a target of 64 shards costs no more than its index.

        Raises :class:`UnsafeFile` for paths that leave the folder and pickles that are not plain tensors,
        :class:`InputError` for every other damage.
        """
        root = Path(folder)
        if not root.is_dir():
            raise InputError(root, "no such folder", "a checkpoint folder")
        files, promised = _files(root)
        if only and promised:
            promised = {name: shard for name, shard in promised.items() if name.endswith(only)}
            files = [file for file in files if file.relative_to(root).as_posix() in promised.values()]
        tensors: dict[str, TensorInfo] = {}
        for file in files:
            for info in _safetensors(file) if file.suffix != ".bin" else _pickle(file):
                if info.name in tensors:
                    found = f"{info.name!r}, already in {tensors[info.name].file.name}"
                    raise InputError(file, found, "every tensor in one file", "remove the stale file")
                tensors[info.name] = info
        absent = {name: shard for name, shard in promised.items() if name not in tensors}
        for name, shard in absent.items():
            if root / shard in files:
                raise InputError(root / shard, f"no tensor {name!r}", "every tensor that the index names")
        return cls(root, MappingProxyType(tensors), MappingProxyType(absent))

    def tensor(self, name: str) -> torch.Tensor:
        """The values of one tensor, read now, from its file alone."""
        return self.sample(name, None)

    def sample(self, name: str, values: int | None) -> torch.Tensor:
        """At most about ``values`` values of a tensor: evenly spread rows, the first and last among them.

        A tensor of no more values, and any with ``values=None``, comes whole.
        """
        info = self.info(name)
        rows, others = _spread(info.shape, values)
        if info.file.suffix == ".bin":
            whole = _unpickle(info.file)[name]
        else:
            try:
                with safe_open(info.file, framework="pt") as file:
                    whole = file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise InputError(info.file, str(error), "a readable safetensors file") from None
        return whole if rows is None else whole[(rows, *others)]  # mapped: other rows are not read

    def info(self, name: str) -> TensorInfo:
        """The header entry of a tensor; :class:`InputError` when there is none."""
        if name not in self.tensors:
            found = f"its file {self.absent[name]} missing" if name in self.absent else "no such tensor"
            raise InputError(f"{self.folder}: {name}", found, "a tensor of this checkpoint")
        return self.tensors[name]

    def find(self, *endings: str) -> TensorInfo | None:
        """The tensor whose name is one of ``endings`` or ends in ``.`` and one; the shortest name wins."""
        fits = [n for n in self.tensors if any(n == e or n.endswith("." + e) for e in endings)]
        return self.tensors[min(fits, key=len)] if fits else None


def _spread(shape: tuple[int, ...], values: int | None) -> tuple[list[int] | None, list[slice]]:
    """Evenly spread row numbers and the part of each row, about ``values`` values; None for all of it."""
    count = torch.Size(shape).numel()
    if values is None or count <= values:
        return None, []
    rows = min(shape[0], MOST_ROWS, max(2, values * shape[0] // count))
    left, others = values // rows, []
    for size in shape[1:]:
        others.append(slice(0, max(1, min(size, left))))
        left //= max(1, min(size, left))
    return torch.linspace(0, shape[0] - 1, rows, dtype=torch.float64).round().long().unique().tolist(), others


def _files(root: Path) -> tuple[list[Path], dict[str, str]]:
    """The weight files of a folder that exist, and the index's promise ``{tensor: file}``.

    Paths keep their names in the folder, checked: a cached repository's real files have no suffix.
    """
    for name in _INDEXES:
        if (root / name).exists():
            entries = read_object(root, name).get("weight_map")
            if not isinstance(entries, dict) or not all(isinstance(v, str) for v in entries.values()):
                raise InputError(root / name, "no map of tensor names to file names", "`weight_map`")
            shards = sorted(set(entries.values()))
            return [root / shard for shard in shards if inside(root, shard).is_file()], entries
    for pattern in ("*.safetensors", "*.bin"):
        found = [p for p in sorted(root.glob(pattern)) if p.name != "training_args.bin" and inside(root, p.name)]
        if found:
            return found, {}
    return [], {}


def _safetensors(path: Path) -> Iterator[TensorInfo]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                entry = file.get_slice(name)
                yield TensorInfo(name, tuple(entry.get_shape()), entry.get_dtype(), path)
    except (SafetensorError, OSError, OverflowError) as error:
        found = f"a damaged header or data ({error})"
        raise InputError(path, found, "a safetensors file", "download or export it again") from None


def _pickle(path: Path) -> Iterator[TensorInfo]:
    for name, value in _unpickle(path).items():
        yield TensorInfo(name, tuple(value.shape), _DTYPES.get(value.dtype, str(value.dtype)), path)


def _unpickle(path: Path) -> dict[str, torch.Tensor]:
    """A ``.bin`` file by torch's weights-only unpickler, its storages mapped and not read."""
    plain, convert = "a pickle of plain tensors", "convert it to safetensors where you trust it"
    if not zipfile.is_zipfile(path):
        raise UnsafeFile(path, "no zip archive", f"{plain} as torch.save writes it since 1.6", convert)
    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise UnsafeFile(path, "a compressed archive", "an archive as torch.save writes it")
    try:
        data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except DAMAGE as error:
        found = f"a pickle that torch will not load safely ({first_line(error)})"
        raise UnsafeFile(path, found, plain, convert) from None
    if not isinstance(data, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in data.items()
    ):
        found = f"a {type(data).__name__} of other things than tensors"
        raise UnsafeFile(path, found, f"{plain} by name", "save the state dict alone, best as safetensors")
    for name, value in data.items():
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UnsafeFile(path, f"{name!r} declared larger than its data", "tensors of their real size")
    return data
