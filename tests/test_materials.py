"""Samples with states come again at each loop; what does not fit is counted and named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle3lib.errors import InputError
from eagle3lib.maths.target import Target
from eagle3lib.measuring.sample_states import SampleStates, StatesDataset
from eagle3lib.reading.samples import Sample, read_samples, write_sample

T, H, VOCAB = 12, 8, 50
TENSORS = Target(torch.ones(VOCAB, H), torch.ones(VOCAB, H), torch.ones(H), 1e-6)


def written(folder: Path, count: int, bad: tuple[int, ...] = ()) -> Path:
    for i in range(count):
        aux_states = 2 if i in bad else 3
        sample = Sample(
            f"{i}", torch.arange(T) % VOCAB, torch.arange(T) >= 4, 4, None, torch.full((T, aux_states, H), float(i))
        )
        write_sample(folder / f"{i:03}.safetensors", sample)
    return folder


def numbers(dataset: StatesDataset) -> list[int]:
    return [int(sample_states.states[3][0, 0]) for sample_states in dataset]


def test_each_loop_reads_anew_and_names_what_does_not_fit(tmp_path: Path) -> None:
    dataset = StatesDataset(read_samples(written(tmp_path, 5, bad=(1,))), TENSORS, assumed=(3, 5, 7))
    for _ in range(2):
        assert numbers(dataset) == [0, 2, 3, 4]
        assert int(dataset.first().states[3][0, 0]) == 0
        assert [name[:3] for name in dataset.refused] == ["001"] and dataset.samples.given == 5
    (tmp_path / "004.safetensors").unlink()
    assert numbers(dataset) == [0, 2, 3]


def test_none_that_fits_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown boundaries"):
        list(StatesDataset(read_samples(written(tmp_path, 3)), TENSORS))


@pytest.mark.parametrize(("limit", "expected"), [(None, [0, 3, 6, 9]), (6, [0, 2, 4])])
def test_a_few_are_spread_over_all(tmp_path: Path, limit: int | None, expected: list[int]) -> None:
    samples = read_samples(written(tmp_path, 10), limit=limit)
    dataset = StatesDataset(samples, TENSORS, assumed=(3, 5, 7))
    assert numbers(dataset) == list(range(limit or 10))
    assert numbers(dataset.spread(4 if limit is None else 3)) == expected
    assert numbers(dataset.spread(100)) == list(range(limit or 10))


def test_a_part_holds_nothing_of_the_whole(tmp_path: Path) -> None:
    sample = Sample("s", torch.arange(40), torch.arange(40) >= 20, 20)
    part = SampleStates(sample, {3: torch.randn(40, H)}).part(before=6, after=5)
    assert len(part.sample.input_ids) == len(part.states[3]) == 11 and part.sample.prompt_tokens == 6
    assert part.states[3].untyped_storage().nbytes() == 11 * H * 4
