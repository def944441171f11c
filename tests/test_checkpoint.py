"""Checkpoints: what is read, what is refused, and what it costs."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eagle3lib.errors import InputError, UnsafeFile
from eagle3lib.maths.draft import Draft
from eagle3lib.reading.checkpoint import Checkpoint
from tests.tiny import tiny_draft, tiny_target

TENSORS = {
    "fc.weight": torch.arange(24.0).reshape(4, 6),
    "d2t": torch.arange(5),
    "t2d": torch.ones(8, dtype=torch.bool),
}
INDEX = "model.safetensors.index.json"
CONFIGS = Path(__file__).parent / "data" / "public_configs"


def header(path: Path, text: str | bytes, data: int = 0, length: int | None = None) -> None:
    """A safetensors file with this header text, then ``data`` zero bytes (sparse)."""
    body = text.encode() if isinstance(text, str) else text
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(body) if length is None else length) + body)
        file.truncate(8 + len(body) + data)


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_single_sharded_and_pickled_files_read_alike(tmp_path: Path) -> None:
    for name in ("single", "sharded", "pickled"):
        (tmp_path / name).mkdir()
    save_file(TENSORS, tmp_path / "single" / "model.safetensors")
    for number, name in enumerate(TENSORS):
        save_file({name: TENSORS[name]}, tmp_path / "sharded" / f"{number}.safetensors")
    index = {"weight_map": {name: f"{number}.safetensors" for number, name in enumerate(TENSORS)}}
    (tmp_path / "sharded" / INDEX).write_text(json.dumps(index))
    torch.save(TENSORS, tmp_path / "pickled" / "pytorch_model.bin")
    for name in ("single", "sharded", "pickled"):
        found = Checkpoint.open(tmp_path / name)
        assert {n: (t.shape, t.dtype) for n, t in found.tensors.items()} == {
            "fc.weight": ((4, 6), "F32"),
            "d2t": ((5,), "I64"),
            "t2d": ((8,), "BOOL"),
        }
        for key, value in TENSORS.items():
            assert torch.equal(found.tensor(key), value)
        assert torch.equal(found.sample("fc.weight", 12), TENSORS["fc.weight"][[0, 3]])
        assert found.find("fc.weight").name == "fc.weight" and found.find("c.weight") is None
        with pytest.raises(InputError, match="no such tensor"):
            found.tensor("lm_head.weight")


def test_a_file_that_the_index_names_may_be_absent_and_says_so(tmp_path: Path) -> None:
    save_file({"d2t": TENSORS["d2t"]}, tmp_path / "a.safetensors")
    (tmp_path / INDEX).write_text(
        json.dumps({"weight_map": {"d2t": "a.safetensors", "lm_head.weight": "b.safetensors"}})
    )
    found = Checkpoint.open(tmp_path)
    assert dict(found.absent) == {"lm_head.weight": "b.safetensors"}
    with pytest.raises(InputError, match="b.safetensors"):
        found.tensor("lm_head.weight")
    assert not Checkpoint.open(tmp_path, only=("d2t",)).absent


def snapshot(root: Path, pickled: bool = False) -> Path:
    """A repository as the Hugging Face hub caches it: the snapshot's files are links to blobs."""
    folder, blobs = root / "models--a--b" / "snapshots" / "0123", root / "models--a--b" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    if pickled:
        torch.save(TENSORS, blobs / "abc")
    else:
        save_file(TENSORS, blobs / "abc")
    (folder / ("pytorch_model.bin" if pickled else "model.safetensors")).symlink_to("../../blobs/abc")
    return folder


@pytest.mark.parametrize("pickled", [False, True])
def test_hub_snapshots_work_and_other_links_do_not(tmp_path: Path, pickled: bool) -> None:
    assert torch.equal(Checkpoint.open(snapshot(tmp_path / "cache", pickled)).tensor("d2t"), TENSORS["d2t"])
    outside = tmp_path / "elsewhere.safetensors"
    save_file(TENSORS, outside)
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(outside)
    with pytest.raises(UnsafeFile):
        Checkpoint.open(folder)


@pytest.mark.parametrize("name", ["../out.safetensors", "/etc/passwd", "link/out.safetensors"])
def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    save_file(TENSORS, tmp_path / "out.safetensors")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"d2t": name}}))
    with pytest.raises(UnsafeFile):
        Checkpoint.open(folder)


HEADERS: dict[str, Callable[[Path], None]] = {
    "length beyond the file": lambda p: header(p, "{}", length=1 << 40),
    "length beyond memory": lambda p: header(p, "{}", length=2**64 - 1),
    "out of range": lambda p: header(p, json.dumps({"a": entry([4], 0, 16)}), data=8),
    "overlapping": lambda p: header(p, json.dumps({"a": entry([4], 0, 16), "b": entry([4], 8, 24)}), data=24),
    "shape and data disagree": lambda p: header(p, json.dumps({"a": entry([9], 0, 16)}), data=16),
    "huge declared tensor": lambda p: header(p, json.dumps({"a": entry([1 << 40, 1 << 40], 0, 16)}), data=16),
    "backwards": lambda p: header(p, json.dumps({"a": entry([4], 16, 0)}), data=16),
    "unknown dtype": lambda p: header(p, json.dumps({"a": entry([4], 0, 16, "F31")}), data=16),
    "nan": lambda p: header(p, '{"a": NaN}'),
    "deep": lambda p: header(p, '{"a":' * 5000 + "1" + "}" * 5000),
    "not json": lambda p: header(p, b"\xff\xfe{"),
    "empty": lambda p: p.write_bytes(b""),
    "a directory": lambda p: p.mkdir(),
}


@pytest.mark.parametrize("name", HEADERS)
def test_damaged_headers_are_one_clear_error(tmp_path: Path, name: str) -> None:
    HEADERS[name](tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="model.safetensors"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"weight_map": 3}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "x", "a": "y"}}',
        '{"weight_map": NaN}',
        "{" + '"a":{' * 200 + "}" * 201,
        "[" * 100000,
        "",
    ],
)
def test_damaged_indexes_are_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(InputError):
        Checkpoint.open(tmp_path)


def test_a_tensor_in_two_files_or_missing_from_its_own_is_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    save_file({"d2t": TENSORS["d2t"]}, tmp_path / "b.safetensors")
    with pytest.raises(InputError, match="every tensor in one file"):
        Checkpoint.open(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"norm.weight": "b.safetensors"}}))
    with pytest.raises(InputError, match=r"no tensor 'norm.weight'"):
        Checkpoint.open(tmp_path)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_run_nothing(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "model" / "pytorch_model.bin"
    path.parent.mkdir()
    torch.save({"a": Bomb(tmp_path / "ran")}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UnsafeFile):
        Checkpoint.open(path.parent)
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(UnsafeFile):
        Checkpoint.open(path.parent)
    assert not (tmp_path / "ran").exists()


def test_pickles_that_lie_about_sizes_or_hold_other_things_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    for data in ({"a": torch.zeros(1).expand(1 << 40)}, {"a": 3}, [torch.zeros(1)], {3: torch.zeros(1)}):
        torch.save(data, path)
        with pytest.raises(UnsafeFile):
            Checkpoint.open(tmp_path)
    torch.save({"a": torch.zeros(4)}, tmp_path / "plain")
    with zipfile.ZipFile(tmp_path / "plain") as plain, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(UnsafeFile, match="compressed"):
        Checkpoint.open(tmp_path)


@settings(max_examples=200, deadline=None)
@given(
    body=st.one_of(
        st.binary(max_size=60),
        st.dictionaries(
            st.text(max_size=4),
            st.fixed_dictionaries(
                {
                    "dtype": st.sampled_from(["F32", "BF16", "I64", "BOOL", "x"]),
                    "shape": st.lists(st.integers(-1, 1 << 40), max_size=3),
                    "data_offsets": st.lists(st.integers(-1, 40), min_size=1, max_size=3),
                }
            ),
            max_size=3,
        ).map(lambda d: json.dumps(d).encode()),
    ),
    data=st.integers(0, 40),
    length=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)
def test_random_headers_give_tensors_or_our_own_error(
    body: bytes, data: int, length: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("random")
    header(folder / "model.safetensors", body, data, length)
    try:
        found = Checkpoint.open(folder)
        for name in found.tensors:
            assert found.tensor(name).shape == found.tensors[name].shape
            found.sample(name, 2)
    except InputError:
        pass


def big_file(path: Path, shapes: dict[str, tuple]) -> None:
    """A sparse safetensors file of these ``(dtype, *shape)``."""
    entries, at = {}, 0
    for name, (dtype, *shape) in shapes.items():
        size = {"BF16": 2, "I64": 8, "BOOL": 1}[dtype] * torch.Size(shape).numel()
        entries[name] = entry(shape, at, at + size, dtype)
        at += size
    header(path, json.dumps(entries), data=at)


def big_pair(root: Path) -> None:
    """A Kimi-K2.5-sized target in 64 shards with a 70,000-entry index, and a real-size draft."""
    target, draft = root / "target", root / "draft"
    target.mkdir()
    draft.mkdir()
    index: dict[str, str] = {}
    for shard in range(64):
        stem = f"model.layers.{shard}.mlp.experts"
        shapes: dict[str, tuple] = {f"{stem}.{i}.up_proj.weight": ("BF16", 2048, 3500) for i in range(1093)}
        if shard in (0, 63):
            shapes["lm_head.weight" if shard else "model.embed_tokens.weight"] = ("BF16", 163840, 7168)
        big_file(target / f"{shard}.safetensors", shapes)
        index |= dict.fromkeys(shapes, f"{shard}.safetensors")
    (target / INDEX).write_text(json.dumps({"weight_map": index}))
    text = {"num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840}
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text}
    (target / "config.json").write_text(json.dumps(config))
    (draft / "config.json").write_text((CONFIGS / "AQ-MedAI_Kimi-K2-Instruct-eagle3.json").read_text())
    h, q, w = 7168, 8192, 18432
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    big_file(
        draft / "model.safetensors",
        {
            "fc.weight": ("BF16", h, 3 * h),
            **{f"midlayer.self_attn.{name}_proj.weight": ("BF16", q, 2 * h) for name in "qkv"},
            "midlayer.self_attn.o_proj.weight": ("BF16", h, q),
            **{f"midlayer.mlp.{name}_proj.weight": ("BF16", w, h) for name in ("gate", "up")},
            "midlayer.mlp.down_proj.weight": ("BF16", h, w),
            **{f"midlayer.{name}.weight": ("BF16", h) for name in norms},
            "norm.weight": ("BF16", h),
            "lm_head.weight": ("BF16", 32000, h),
            "d2t": ("I64", 32000),
            "t2d": ("BOOL", 163840),
        },
    )


MEASURE = """
import json, resource, sys, time
from eagle3lib.findings.config_rules import inspect
from eagle3lib.reading.checkpoint import Checkpoint
from tests.tiny import tiny_draft, tiny_target

def measured(work):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.monotonic(), time.process_time()
    work()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    print(json.dumps([time.process_time() - cpu, time.monotonic() - wall, grown / 1024]))

root = sys.argv[1]
measured(lambda: inspect(root + "/draft", root + "/target"))
measured(lambda: Checkpoint.open(root + "/target"))
"""


def test_a_trillion_parameters_cost_little(tmp_path: Path) -> None:
    """Limits on the processor's time, the best of three: a busy machine slows a run, and none is too fast."""
    big_pair(tmp_path)
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    runs = []
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
        runs.append([json.loads(line) for line in done.stdout.splitlines()])
        if all(cpu < 2 and wall < 10 and megabytes < 200 for cpu, wall, megabytes in runs[-1]):
            break
    else:
        pytest.fail(f"CPU seconds, seconds, MB: {runs}")
    assert len(Checkpoint.open(tmp_path / "target").tensors) == 64 * 1093 + 2


def test_a_draft_of_nan_weights_and_a_device_that_is_not_there_are_refused(tmp_path: Path) -> None:
    tiny_draft(tmp_path, tiny_target(tmp_path / "target"))
    with pytest.raises(InputError, match="device: found nowhere"):
        Draft.load(tmp_path, None, device="nowhere")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["fc.weight"][0, 0] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"fc\.weight: found NaN"):
        Draft.load(tmp_path, None)
