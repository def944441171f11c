"""Configured ids to boundaries and back: against SGLang's own setters, and by properties."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_source import method

from eagle3lib.engine.capture_ids import RULES, VERSIONS, captured, engine_version, family_rule, ids_for
from eagle3lib.maths.wiring import default_boundaries

#: Family -> file, class, and the class of its inner model where that one sets the flags.
SETTERS = {
    "llama": ("llama", "LlamaForCausalLM", ""),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", ""),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", ""),
    "qwen2_moe": ("qwen2_moe", "Qwen2MoeForCausalLM", "Qwen2MoeModel"),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", ""),
    "qwen3_next": ("qwen3_next", "Qwen3NextForCausalLM", "Qwen3NextModel"),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2ForCausalLM", ""),
    "glm4_moe": ("glm4_moe", "Glm4MoeForCausalLM", ""),
    "glm4_moe_lite": ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", ""),
    "gpt_oss": ("gpt_oss", "GptOssForCausalLM", ""),
    "gemma3": ("gemma3_causal", "Gemma3ForCausalLM", ""),
    "gemma4": ("gemma4_causal", "Gemma4ForCausalLM", ""),
    "minimax_m2": ("minimax_m2", "MiniMaxM2ForCausalLM", ""),
    "minimax_m3": ("minimax_m3", "MiniMaxM3SparseForCausalLM", ""),
    "minimax_m3_vl": ("minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", ""),
    "bailing_moe": ("bailing_moe", "BailingMoEForCausalLM", ""),
    "longcat_flash": ("longcat_flash", "LongcatFlashForCausalLM", ""),
    "exaone_moe": ("exaone_moe", "ExaoneMoEForCausalLM", ""),
    "apertus": ("apertus", "ApertusForCausalLM", ""),
}


class Inner(SimpleNamespace):
    """The inner model: takes either a list of layers or a call."""

    def set_eagle3_layers_to_capture(self, layers: list[int]) -> None:
        self.layers_to_capture = layers


@cache
def setter(family: str):
    group = SimpleNamespace(pp_group=SimpleNamespace(is_last_rank=True))
    file, owner, _ = SETTERS[family]
    return method(file, owner, "set_eagle3_layers_to_capture", {"get_parallel": lambda: group})


def internal(family: str, ids: list[int] | None, layers: int) -> list[int]:
    """The engine's own internal list for these ids."""
    config = SimpleNamespace(num_hidden_layers=layers, text_config=SimpleNamespace(num_hidden_layers=layers))
    model = Inner(layers=[SimpleNamespace() for _ in range(layers)])
    one = SimpleNamespace(pp_group=SimpleNamespace(is_last_rank=True), config=config, model=model)
    setter(family)(one, ids)
    return list(model.layers_to_capture)


@pytest.mark.parametrize("family", SETTERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_the_engines_own_setters(family: str, data: st.DataObject) -> None:
    layers = data.draw(st.integers(8, 64))
    ids = data.draw(st.one_of(st.none(), st.lists(st.integers(-2, layers + 1), min_size=1, max_size=4)))
    rule = family_rule(family, "0.5.23")
    inner = internal(family, ids, layers)
    if rule.flagged:  # a flag on layers[i]: Python counts a negative i from the end
        inner = [i + layers if -layers <= i < 0 else i for i in inner]
    reached = sorted({i for i in inner if 0 <= i < layers + rule.final})
    found = captured(ids, family, layers, "0.5.23")
    assert found.boundaries == tuple(reached)
    assert bool(found.problems) is (len(reached) < len(inner))
    assert found.default is (ids is None)


@settings(max_examples=200, deadline=None)
@given(
    family=st.sampled_from([*RULES["0.5.23"], "never heard of"]),
    version=st.sampled_from(VERSIONS),
    layers=st.integers(6, 64),
    data=st.data(),
)
def test_ids_for_is_the_inverse(family: str, version: str, layers: int, data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.integers(0, layers), min_size=1, max_size=4, unique=True))
    found = ids_for(wanted, family, layers, version)
    assert found.reason
    if found.ids is not None:
        back = captured(found.ids, family, layers, version)
        assert back.boundaries == tuple(sorted(wanted)) and not back.problems
    else:
        rule = family_rule(family, version)
        assert rule is None or 0 in wanted or layers in wanted or rule.shift == "first" and wanted == [1]


@pytest.mark.parametrize(
    "family, version, boundaries, ids",
    [
        ("llama", "0.5.23", (0, 3, 31), (-1, 2, 30)),
        ("deepseek_v2", "0.5.23", (0, 3, 31), (0, 3, 31)),
        ("kimi_k25", "0.5.23", (0, 3, 31), (0, 3, 31)),
        ("llama", "0.5.9", (0, 3, 31), None),
        ("deepseek_v2", "0.5.9", (0, 3, 31), None),
        ("kimi_k25", "0.5.9", (2, 30, 58), None),
        ("deepseek_v2", "0.5.23", (1, 20, 40), (20, 40, 1)),
        ("deepseek_v2", "0.5.9", (3, 31, 59), (2, 30, 58)),
        ("gpt_oss", "0.5.23", (2, 30, 61), (2, 30, 61)),
        ("gpt_oss", "0.5.9", (2, 30, 61), None),
        ("qwen3_moe", "0.5.23", (2, 30, 61), None),
    ],
)
def test_the_cure_is_that_of_the_family_and_version(
    family: str, version: str, boundaries: tuple[int, ...], ids: tuple[int, ...] | None
) -> None:
    assert ids_for(boundaries, family, 61, version).ids == ids


def test_the_kimi_trap() -> None:
    assert captured([0, 3, 31], "kimi_k25", 61, "0.5.23").boundaries == (0, 3, 31)
    trap = captured([-1, 2, 30], "kimi_k25", 61, "0.5.23")
    assert trap.boundaries == (2, 30) and "boundary -1" in trap.problems[0].text
    assert captured([2, 30, 58], "kimi_k25", 61, "0.5.23").boundaries == default_boundaries(61)


@pytest.mark.parametrize(
    "engine, version, noted",
    [
        ("sglang 0.5.23", "0.5.23", False),
        ("sglang==0.5.23", "0.5.23", False),
        ("sglang==0.5.9", "0.5.9", False),
        ("sglang==0.5.12", "0.5.9", True),
        ("sglang==0.6.0", "0.5.23", True),
        ("sglang 0.5.23.post1", "0.5.23", False),
        ("vllm==0.33.0", "0.5.23", True),
        ("", "0.5.23", True),
    ],
)
def test_unknown_versions_fall_back_with_a_note(engine: str, version: str, noted: bool) -> None:
    found, note = engine_version(engine)
    assert (found, bool(note)) == (version, noted)
