"""Every trainer's sample layout says the same; damaged files are named and do not stop the rest."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle3lib.errors import InputError
from eagle3lib.maths.target import Target
from eagle3lib.reading.samples import Sample, from_tensors, read_samples, write_sample
from tests.tiny import tiny_target

T, K, H, PROMPT = 9, 3, 8, 4
DRAW = torch.Generator().manual_seed(0)
IDS = torch.randint(100, (T,), generator=DRAW)
MASK = torch.arange(T) >= PROMPT
STATES = torch.randn(T, K, H, generator=DRAW)
LAST = torch.randn(T, H, generator=DRAW)
OURS = Sample("one", IDS, MASK, PROMPT, "maths", STATES, (0, 3, 16), LAST, False, "some-target")


def specforge(folder: Path) -> None:
    data = {
        "input_ids": IDS,
        "loss_mask": MASK.long(),
        "hidden_state": LAST[None],
        "aux_hidden_state": STATES.flatten(1)[None],
    }
    (folder / "rows_0-5000").mkdir()
    torch.save(data, folder / "rows_0-5000" / "data_0.ckpt")
    (folder / "vocab_mapping.pt").write_bytes(b"beside")


def specforge_gzipped(folder: Path) -> None:
    specforge(folder)
    plain = folder / "rows_0-5000" / "data_0.ckpt"
    (plain.with_name("data_0.ckpt.gz")).write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


def speculators(folder: Path) -> None:
    hidden = torch.cat([STATES, LAST[:, None]], 1)
    save_file({"hidden_states": hidden, "token_ids": IDS, "loss_mask": MASK.long()}, folder / "hs_0.safetensors")


def modelopt(folder: Path) -> None:
    data = {"input_ids": IDS, "hidden_states": LAST, "aux_hidden_states": STATES.flatten(1),
            "loss_mask": MASK.long(), "conversation_id": "c1"}  # fmt: skip
    torch.save(data, folder / "c1.pt")


def angelslim(folder: Path) -> None:
    data = {"input_ids": IDS[None], "target_hiddens": LAST[None], "hidden_states": STATES.flatten(1)[None],
            "attention_mask": torch.ones(1, T), "loss_mask": MASK.long()[None],
            "position_ids": torch.arange(T)}  # fmt: skip
    torch.save(data, folder / "a.ckpt")


def ours(folder: Path) -> None:
    write_sample(folder / "one.safetensors", OURS)


#: layout -> (writer, is its last state normed: yes, no, cannot be told from the file)
LAYOUTS = {
    "specforge": (specforge, True), "specforge gzipped": (specforge_gzipped, True),
    "speculators": (speculators, False),
    "modelopt": (modelopt, None), "angelslim": (angelslim, True), "ours": (ours, False),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_layouts_say_the_same(layout: str, tmp_path: Path) -> None:
    write, normed = LAYOUTS[layout]
    write(tmp_path)
    samples = read_samples(tmp_path)
    (found,) = samples
    assert torch.equal(found.input_ids, IDS) and torch.equal(found.loss_mask, MASK)
    assert torch.equal(found.states, STATES) and torch.equal(found.last_hidden_state, LAST)
    assert (found.prompt_tokens, found.last_is_normed) == (PROMPT, normed)
    assert found.layout and not samples.refused


def test_ours_keeps_everything(tmp_path: Path) -> None:
    ours(tmp_path)
    (found,) = read_samples(tmp_path)
    assert (found.boundaries, found.category, found.target) == ((0, 3, 16), "maths", "some-target")
    assert [p.name for p in tmp_path.iterdir()] == ["one.safetensors"]


def test_jsonl_streams_with_line_numbers(tmp_path: Path) -> None:
    lines = [{"input_ids": IDS.tolist(), "prompt_tokens": 4, "category": "code"}, {"input_ids": [1]},
             {"input_ids": [3] * 5, "prompt_tokens": 2}]  # fmt: skip
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{broken\n")
    samples = read_samples(tmp_path / "s.jsonl")
    assert [(s.prompt_tokens, s.category, s.states) for s in samples] == [(4, "code", None), (2, None, None)]
    assert list(samples.refused) == ["s.jsonl:2", "s.jsonl:4"]
    assert len(list(read_samples(tmp_path / "s.jsonl", limit=1))) == 1


def test_replies_are_runs_of_the_mask() -> None:
    mask = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    assert Sample("s", IDS, mask, 2).replies == [(2, 4), (6, 9)]


def stored(name: str, **changes: object):  # noqa: ANN201
    """A writer of our layout with some tensors replaced or, where None, left out."""

    def write(folder: Path) -> None:
        tensors = {"input_ids": IDS, "loss_mask": MASK.long(), "aux_hidden_states": STATES} | changes
        save_file({k: v.contiguous() for k, v in tensors.items() if v is not None}, folder / name)

    return write


def written(name: str, content: bytes):  # noqa: ANN201
    return lambda folder: (folder / name).write_bytes(content)


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def not_a_number() -> torch.Tensor:
    states = STATES.clone()
    states[3, 1, 2] = float("nan")
    return states


DAMAGED = {
    "truncated": (written("x.ckpt", pickled({"input_ids": IDS})[:300]), "damaged"),
    "truncated safetensors": (written("x.safetensors", b"\x90\x00\x00\x00\x00\x00\x00\x00{"), "damaged"),
    "truncated gzip": (written("x.ckpt.gz", gzip.compress(pickled({"input_ids": IDS}))[:200]), "damaged"),
    "code in a pickle": (written("x.pt", pickled({"input_ids": Path("x")})), "unsafe"),
    "a list": (written("x.pt", pickled([IDS])), "list"),
    "misaligned": (stored("x.safetensors", aux_hidden_states=STATES[:-2]), "prefix cache"),
    "mask of another length": (stored("x.safetensors", loss_mask=MASK[:-1].long()), "loss_mask"),
    "not a number": (stored("x.safetensors", aux_hidden_states=not_a_number()), "NaN"),
    "nothing generated": (stored("x.safetensors", loss_mask=torch.zeros(T).long()), "prompt tokens"),
    "one axis": (stored("x.safetensors", aux_hidden_states=torch.zeros(())), "one state a token"),
    "empty states": (stored("x.safetensors", last_hidden_state=torch.zeros(T, 0)), "one state a token"),
    "a mask that is none": (written("x.pt", pickled({"input_ids": IDS, "hidden_states": STATES, "loss_mask": [1]})),
                            "loss_mask"),
    "no states": (stored("x.safetensors", aux_hidden_states=None), "captured states"),
    "foreign": (stored("x.safetensors", input_ids=None), "input_ids"),
    "one wide state": (stored("x.safetensors", aux_hidden_states=STATES.flatten(1)), "width"),
    "widths that do not fit": (
        stored("x.safetensors", aux_hidden_states=torch.zeros(T, 20), hidden_states=LAST), "multiple"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_named_and_not_fatal(damage: str, tmp_path: Path) -> None:
    write, reason = DAMAGED[damage]
    write(tmp_path)
    with pytest.raises(InputError, match=reason):
        list(read_samples(tmp_path))
    ours(tmp_path)
    samples = read_samples(tmp_path)
    assert [s.name for s in samples] == ["one.safetensors"]
    assert [(name[:2], reason in str(error)) for name, error in samples.refused.items()] == [("x.", True)]


def test_a_width_decides_what_one_state_is(tmp_path: Path) -> None:
    stored("x.safetensors", aux_hidden_states=STATES.flatten(1))(tmp_path)
    (found,) = read_samples(tmp_path, target_width=H)
    assert torch.equal(found.states, STATES)


@pytest.mark.parametrize("key", ["aux_hidden_states", "hidden_states"])
def test_states_of_another_target_are_named_and_not_fatal(key: str, tmp_path: Path) -> None:
    ours(tmp_path)
    states = {"aux_hidden_states": None, "last_hidden_state": None, key: torch.zeros(T, 3, 2 * H)}
    stored("x.safetensors", **states)(tmp_path)
    samples = read_samples(tmp_path, target_width=H)
    assert [s.name for s in samples] == ["one.safetensors"]
    assert f"states {2 * H} wide, expected {H}" in str(samples.refused["x.safetensors"])


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    ours(tmp_path)
    (tmp_path / "inside" / "link.safetensors").symlink_to(tmp_path / "one.safetensors")
    with pytest.raises(InputError, match="inside the folder"):
        list(read_samples(tmp_path / "inside"))


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="final norm"):
        write_sample(tmp_path / "x.safetensors", replace(OURS, last_is_normed=True))
    with pytest.raises(InputError, match="one boundary for each"):
        replace(OURS, boundaries=(0, 3))


def test_nothing_given_is_not_the_working_directory() -> None:
    with pytest.raises(InputError, match="samples: found nothing"):
        read_samples("")


def test_bad_lines_are_refused_among_good_ones(tmp_path: Path) -> None:
    good = json.dumps({"input_ids": [1, 2, 3, 4], "prompt_tokens": 2}).encode()
    bad = [b"\xff\xfe", b'{"input_ids": [1.5, 2, 3], "prompt_tokens": 1}', b"[1, 2]", good.replace(b"4]", b"999]")]
    bad += [good[:-1] + b', "category": ["a"]}', good.replace(b": 2", b": 1e999"), b"[" * 99999]
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\n".join([*bad, good]))
    samples = read_samples(path, vocab=100)
    assert [sample.name for sample in samples] == ["s.jsonl:8"]
    assert len(samples.refused) == 7 and "token id 999" in str(samples.refused["s.jsonl:4"])


@pytest.mark.parametrize("text", ["abc", "3", '["a"]', "[-1, 0, 2]"])
def test_boundaries_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="boundaries"):
        from_tensors("one", {"input_ids": IDS, "aux_hidden_states": STATES}, {"boundaries": text}, H)


def test_a_target_without_its_blocks_is_not_run(tmp_path: Path) -> None:
    model = tiny_target(tmp_path / "whole")
    assert len(Target.open(tmp_path / "whole").states(IDS)) == T
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "config.json").write_bytes((tmp_path / "whole" / "config.json").read_bytes())
    kept = {name: value.contiguous() for name, value in model.state_dict().items() if ".layers." not in name}
    save_file(kept, tmp_path / "part" / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="missing"):
        Target.open(tmp_path / "part").states(IDS)
