"""Requests in their three forms, and what is none."""

from __future__ import annotations

import json

import pytest

from eagle3lib.errors import InputError
from eagle3lib.reading.prompts import Prompt, read_prompts
from tests.tiny import tiny_target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    tiny_target(folder)
    return folder


def write(folder, *records):
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(record if isinstance(record, str) else json.dumps(record) for record in records))
    return path


def test_messages_text_and_ids_become_ids(target, tmp_path):
    path = write(
        tmp_path,
        {"messages": [{"role": "user", "content": "w9 w8"}], "category": "maths"},
        {"text": "w7 w6", "max_new_tokens": 5},
        {"input_ids": [3, 9]},
    )
    assert read_prompts(path, target) == [Prompt((3, 9, 8, 4), "maths"), Prompt((7, 6), None, 5), Prompt((3, 9))]
    assert read_prompts(write(tmp_path, {"input_ids": [3, 9]})) == [Prompt((3, 9))]  # no tokenizer needed


BAD = [
    "",
    "{",
    "[1, 2]",
    {"prompt": "w5"},
    {"text": "w5", "input_ids": [1]},
    {"input_ids": []},
    {"input_ids": [1, -2]},
    {"input_ids": [True]},
    {"messages": "w5"},
    {"messages": [{"role": "user"}]},
    {"text": 5},
    {"input_ids": [1], "max_new_tokens": 0},
]


@pytest.mark.parametrize("record", BAD)
def test_what_is_no_request_is_one_clear_error(target, tmp_path, record):
    with pytest.raises(InputError):
        read_prompts(write(tmp_path, record), target)


def test_words_need_a_target(tmp_path):
    with pytest.raises(InputError, match="target"):
        read_prompts(write(tmp_path, {"text": "w5"}))
    with pytest.raises(InputError, match="tokenizer"):
        read_prompts(write(tmp_path, {"text": "w5"}), tmp_path)
