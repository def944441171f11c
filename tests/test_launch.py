"""Launch lines as people paste them."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eagle3lib.engine.speculation import speculation
from eagle3lib.errors import InputError
from eagle3lib.reading.launch import Launch

PASTED = r"""
# the server on box 3
export CUDA_VISIBLE_DEVICES=0,1 && SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 \
    nohup python3 -m sglang.launch_server \
    --model-path "/models/My Model" --tp 2 \
    --speculative-algorithm=EAGLE3 --speculative-draft-model /models/draft \
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens=4 \
    --json-model-override-args '{"rope_theta": 1e6, "a": [1, "--x"]}' --cuda-graph-bs 1 2 4 \
    --trust-remote-code --mem-fraction-static 0.8 --random-seed -1 > server.log 2>&1 &
"""


def words(line: Launch) -> list[str]:
    return [part.values[0] for part in line.parts if not part.name]


def test_a_pasted_line_is_read_whole() -> None:
    line = Launch.parse(PASTED)
    assert line.program == "sglang" and line.source == "line"
    assert dict(line.env) == {"CUDA_VISIBLE_DEVICES": "0,1", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert line.set_in_env("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
    assert line.text("model_path") == "/models/My Model"
    assert line.text("speculative_draft_model_path") == "/models/draft"
    assert [line.integer(f"speculative_{n}") for n in ("num_steps", "eagle_topk", "num_draft_tokens")] == [3, 1, 4]
    assert line.json("json_model_override_args") == {"rope_theta": 1e6, "a": [1, "--x"]}
    assert line.flags["cuda_graph_bs"] == ["1", "2", "4"] and line.integer("tp_size") == 2
    assert line.switch("trust_remote_code") and not line.switch("enable_dp_attention")
    assert line.number("mem_fraction_static") == 0.8 and line.integer("random_seed") == -1
    assert set(words(line)) >= {"&&", "nohup", ">", "server.log", "2>&1", "&"}


@pytest.mark.parametrize(
    "text, program, flags",
    [
        ("sglang serve org/model --tp-size 2", "sglang", {"model_path": "org/model", "tp_size": "2"}),
        ("--speculative-num-step 3", "", {"speculative_num_steps": "3"}),
        ("vllm serve m --speculative-config '{}'", "vllm", {"speculative_config": "{}", "model_path": "m"}),
        ("/opt/env/bin/python -m sglang.launch_server --disable-cuda-graph", "sglang", {"disable_cuda_graph": True}),
        ("--a= --b=1=2", "", {"a": "", "b": "1=2"}),
        ("--model-path a b", "", {"model_path": ["a", "b"]}),
        ("   ", "", {}),
    ],
)
def test_spellings(text: str, program: str, flags: dict) -> None:
    found = Launch.parse(text)
    assert (found.program, dict(found.flags)) == (program, flags)


def test_server_info_is_read_as_what_became_effective() -> None:
    info = {
        "model_path": "m",
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "context_length": None,
        "internal_states": [{"avg_spec_accept_length": 2.0}],
    }
    found = Launch.parse(json.dumps(info))
    assert found.source == "server_info" and found.integer("speculative_num_steps") == 3
    assert found.integer("context_length") is None and "internal_states" not in found.flags and found.notes


def test_a_changed_line_is_the_line_with_the_change() -> None:
    line = Launch.parse(PASTED)
    text = line.render(
        {
            "--speculative-num-steps": 5,
            "--speculative-num-draft-tokens": 6,
            "--trust-remote-code": None,
            "--disable-radix-cache": True,
            "--random-seed": 0,
            "--served-model-name": "a b",
        }
    )
    again = Launch.parse(text)
    assert again.env == line.env and words(again) == words(line)
    expected = {
        **line.flags,
        "speculative_num_steps": "5",
        "speculative_num_draft_tokens": "6",
        "disable_radix_cache": True,
        "served_model_name": "a b",
        "random_seed": "0",
    }
    expected.pop("trust_remote_code")
    assert dict(again.flags) == expected
    assert text.endswith("> server.log 2>&1 &") and "--speculative-num-draft-tokens=6" in text
    assert Launch.parse(line.render({})).flags == line.flags


def test_a_change_of_a_flag_leaves_an_environment_setting_of_that_name() -> None:
    assert Launch.parse("tp_size=1 run --port 3").render({"--tp": 2, "--port": None}) == "tp_size=1 run --tp 2"


@pytest.mark.parametrize("text", ["--a 'b", '{"a": NaN}', "{", '{"a": 1, "a": 2}', "x" * (2 << 20), "{" * 9999])
def test_text_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Launch.parse(text)


@pytest.mark.parametrize("value", ["three", "", "1.5", "1 2"])
def test_values_of_the_wrong_type_are_refused(value: str) -> None:
    with pytest.raises(InputError, match="--speculative-num-steps"):
        Launch.parse(f"--speculative-num-steps={value}" if " " not in value else "--speculative-num-steps 1 2").integer(
            "speculative_num_steps"
        )


@pytest.mark.parametrize(
    "line, architecture, version, effective, refused",
    [
        ("--speculative-algorithm EAGLE3", "LlamaForCausalLM", "0.5.23", (5, 4, 8), False),
        ("--speculative-algorithm EAGLE3", "Qwen3ForCausalLM", "0.5.23", (3, 1, 4), False),
        ("--speculative-num-steps 3 --speculative-eagle-topk 1", "LlamaForCausalLM", "0.5.23", (3, 1, 4), False),
        (
            "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16",
            "",
            "0.5.23",
            (1, 1, 2),
            False,
        ),
        (
            "--speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 64",
            "",
            "0.5.23",
            (5, 8, 64),
            False,
        ),
        (
            "--speculative-num-steps 1 --speculative-eagle-topk 8 --speculative-num-draft-tokens 64",
            "",
            "0.5.23",
            (1, 8, 64),
            True,
        ),
        ("--speculative-num-steps 3", "", "0.5.23", (3, None, None), True),
        ("--speculative-eagle-topk 4", "", "0.5.23", (None, 4, None), True),
        ("--speculative-algorithm NEXTN", "", "0.5.9", (3, 1, 4), False),
        ("--speculative-algorithm EAGLE3 --speculative-draft-window-size 9", "", "0.5.9", (3, 1, 4), True),
        ("--speculative-algorithm EAGLE9", "", "0.5.23", (None, None, None), True),
        ("--model-path m", "LlamaForCausalLM", "0.5.23", (None, None, None), False),
    ],
)
def test_the_settings_that_take_effect(
    line: str, architecture: str, version: str, effective: tuple[int | None, ...], refused: bool
) -> None:
    found = speculation(Launch.parse(line), architecture, version)
    assert (found.num_steps, found.topk, found.num_draft_tokens) == effective
    assert bool(found.refusals) is refused


WORDS = st.text(alphabet="ab1-=\"'\\{}$& ;>#\n", max_size=12)


@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.one_of(WORDS, st.just("--speculative-num-steps"), st.just("A=1")), max_size=8).map(" ".join))
@example(text="---")
@example(text="--=1 --")
def test_any_text_is_read_or_refused_and_rendered_alike(text: str) -> None:
    try:
        found = Launch.parse(text)
    except InputError:
        return
    again = Launch.parse(found.render({}))
    if found.source == "line":
        assert again.flags == found.flags and again.env == found.env


def test_words_without_a_flag_and_a_flag_without_its_value_are_refused() -> None:
    with pytest.raises(InputError, match="a server's command line"):
        Launch.parse("hello world")
    with pytest.raises(InputError, match="found no value"):
        Launch.parse("--speculative-num-steps").integer("speculative_num_steps")
