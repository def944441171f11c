"""The table of config findings: for every kind a faulty pair and a healthy twin, made small."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
import torch
from config_cases import CASES, CURES, HEALTHY, Change
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from static_pairs import SMALL, VOCAB, H, Pair

from eagle3lib.batch.cure import write_cured_draft
from eagle3lib.errors import InputError
from eagle3lib.findings.config_rules import Inspection, corrected_config, inspect
from eagle3lib.findings.edits import apply_edits
from eagle3lib.findings.finding import Edit

CONFIGS = Path(__file__).parent / "data" / "public_configs"


def look(pair: Pair, folder: Path) -> Inspection:
    draft, target = pair.write(folder)
    return inspect(draft, target, pair.launch, pair.engine, pair.longest_prompt)


def told(inspection: Inspection, *severities: str) -> set[str]:
    return {f.kind for f in inspection.findings if f.severity in (severities or ("error", "warning"))}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_a_fault_is_named_and_its_healthy_twin_is_not(number: int, tmp_path: Path) -> None:
    kind, fault, twin = CASES[number]
    for change, expected in ((fault, True), (twin, False)):
        pair = Pair()
        change(pair)
        found = look(pair, tmp_path / str(expected))
        assert (kind in told(found)) is expected, [(f.kind, f.severity, f.evidence) for f in found.findings]
        for finding in found.findings:
            assert finding.evidence and finding.consequence and finding.remedy and finding.subject
            assert "{" not in finding.remedy, finding


@pytest.mark.parametrize("number", range(len(HEALTHY)))
def test_healthy_setups_get_no_error_and_no_warning(number: int, tmp_path: Path) -> None:
    pair = Pair()
    HEALTHY[number](pair)
    found = look(pair, tmp_path)
    assert not told(found), [(f.kind, f.severity, f.evidence) for f in found.findings]
    assert not found.served.crashes
    assert found.served.wiring is not None


def test_one_sixteen_is_cured_by_the_usual_chain(tmp_path: Path) -> None:
    pair = Pair()
    pair.launch = "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"
    found = look(pair, tmp_path)
    (finding,) = found.findings
    assert (finding.kind, finding.severity) == ("flags.steps_tokens", "error")
    assert "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in finding.remedy
    assert found.served.speculation.num_draft_tokens == 2
    edits = {edit.key: edit.value for edit in finding.edits}
    assert found.launch.render(edits) == (
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )


@pytest.mark.parametrize("change, engine, ids", CURES)
def test_the_embedding_as_a_state_is_cured_by_family_and_version(
    change: Change, engine: str, ids: list[int] | None, tmp_path: Path
) -> None:
    pair = Pair()
    change(pair)
    pair.engine = engine
    found = look(pair, tmp_path)
    assert told(found, "error")
    config, _ = corrected_config(found)
    if ids is None:
        assert any(
            f.kind == "arch.unsupported" or "family" in f.evidence or "no EAGLE-3" in f.evidence for f in found.findings
        )
        assert not any(edit.key.startswith("eagle_config") for f in found.findings for edit in f.edits)
    else:
        assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == ids


def test_the_corrected_config_is_clean_and_the_users_file_untouched(tmp_path: Path) -> None:
    pair = Pair()
    pair.speculators(eagle_aux_hidden_state_layer_ids=[3, 7, 9])
    found = look(pair, tmp_path)
    before = (tmp_path / "draft" / "config.json").read_bytes()
    config, diff = corrected_config(found)
    assert (tmp_path / "draft" / "config.json").read_bytes() == before
    assert diff.startswith("--- config.json") and '+  "LlamaForCausalLMEagle3"' in diff.replace("    ", "  ")
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 6, 8]
    pair.draft = config
    again = look(pair, tmp_path)
    assert not told(again)
    assert again.served.captured.boundaries == (3, 7, 9)
    assert corrected_config(again)[1] == ""


def test_a_cured_draft_holds_the_corrected_config(tmp_path: Path) -> None:
    pair = Pair()
    pair.speculators(eagle_aux_hidden_state_layer_ids=[3, 7, 9])
    found = look(pair, tmp_path)
    edits = [edit for finding in found.findings for edit in finding.edits if edit.where == "draft config"]
    cured = write_cured_draft(tmp_path / "draft", edits, tmp_path / "cured")
    assert json.loads((cured / "config.json").read_text()) == corrected_config(found)[0]


def test_edits_make_the_objects_they_need_and_the_surer_one_has_its_way() -> None:
    edits = [Edit("draft config", "a.b", 1), Edit("draft config", "a.b", 2), Edit("launch", "--x", 3)]
    before = {"a": None, "c": 4}
    assert apply_edits(before, [*edits, Edit("draft config", "c", None)]) == {"a": {"b": 1}}
    assert before == {"a": None, "c": 4}


PUBLIC = {
    "AQ-MedAI_Kimi-K2-Instruct-eagle3": ("DeepseekV3ForCausalLM", 61, 7168, 163840),
    "specforge-kimi-k2-eagle3": ("KimiK25ForConditionalGeneration", 61, 7168, 163840),
    "specforge-deepseek-v2-lite-eagle3": ("DeepseekV2ForCausalLM", 27, 2048, 102400),
    "specforge-llama3-8B-eagle3": ("LlamaForCausalLM", 32, 4096, 128256),
    "specforge-qwen3-30B-eagle3": ("Qwen3MoeForCausalLM", 48, 2048, 151936),
    "specforge-qwen3-8b-eagle3": ("Qwen3ForCausalLM", 36, 4096, 151936),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_sound_public_configs_are_left_in_peace(name: str, tmp_path: Path) -> None:
    architecture, layers, width, vocab = PUBLIC[name]
    target = {
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "hidden_size": width,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
        "rope_theta": 5e5,
        "tie_word_embeddings": False,
    }
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps(target))
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text((CONFIGS / f"{name}.json").read_text())
    for beside in (tmp_path / "target", ""):
        found = inspect(tmp_path / "draft", beside)
        assert not told(found), [(f.kind, f.evidence) for f in found.findings]
        assert "draft weights: only the config is judged" in found.missing


def test_unsafe_weights_become_a_finding_and_nothing_runs(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "ran"),)

    pair = Pair()
    draft_folder, target_folder = pair.write(tmp_path)
    (draft_folder / "model.safetensors").unlink()
    torch.save({"fc.weight": Bomb()}, draft_folder / "pytorch_model.bin")
    found = inspect(draft_folder, target_folder)
    assert told(found) == {"weights.unsafe_file"}
    assert not (tmp_path / "ran").exists()


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 80),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=5),
    st.lists(st.integers(-2, 70), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(0, 9), max_size=2),
)
KEYS = st.sampled_from(
    sorted(
        {
            *Pair().draft,
            "norm_output",
            "fc_norm",
            "norm_before_fc",
            "norm_before_residual",
            "transformer_layer_config",
            "layer_types",
            "speculators_config",
            "eagle_aux_hidden_state_layer_ids",
            "aux_hidden_states_layer_ids",
            "sliding_window",
            "rope_parameters",
            "target_hidden_size",
            "num_aux_hidden_states",
            "quantization_config",
            "truncated_vocab_size",
            "kv_lora_rank",
            "q_lora_rank",
        }
    )
)
FLAG_LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "--speculative-algorithm",
                "EAGLE3",
                "--speculative-num-steps",
                "--speculative-eagle-topk",
                "--context-length",
                "--speculative-num-draft-tokens=7",
                "--json-model-override-args",
                '{"rope_theta": 3}',
                "--page-size",
                "-1",
                "2",
                "1e400",
                "--quantization",
                "awq",
                "&&",
                ">",
                "A=1",
                "--speculative-draft-window-size",
                "--model-path",
                "'",
            ]
        ),
        st.text(max_size=6),
    ),
    max_size=9,
).map(" ".join)


TENSORS = st.builds(
    lambda shape, dtype, scale: (torch.ones(shape) * scale).to(dtype),
    st.sampled_from([(), (0,), (1,), (SMALL,), (H,), (VOCAB, H), (SMALL, H), (0, H), (2, 3, 4), (H, 3 * H)]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.float8_e4m3fn]),
    st.sampled_from([0, 1, 7, -5]),
)
NAMES = st.sampled_from(
    [
        *Pair().weights,
        "embed_tokens.weight",
        "input_norm.weight",
        "fc_norm.0.weight",
        "fc.bias",
        "layers.3.input_layernorm.weight",
        "model.d2t",
        "{x}<b>",
        "mask_hidden",
    ]
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(KEYS, VALUES, max_size=5),
    target=st.dictionaries(st.sampled_from(sorted(Pair().target)), VALUES, max_size=2),
    tensors=st.dictionaries(NAMES, TENSORS, max_size=2),
    line=FLAG_LINES,
    engine=st.sampled_from(["sglang==0.5.23", "sglang==0.5.9", "sglang==0.5.14", "vllm==1", "", "sglang"]),
    prompt=st.integers(0, 5000),
)
def test_nothing_but_our_own_error_comes_out(
    changes: dict, target: dict, tensors: dict, line: str, engine: str, prompt: int, tmp_path: Path
) -> None:
    pair = Pair()
    pair.draft.update(changes)
    pair.target.update(target)
    pair.weights.update(tensors)
    pair.launch, pair.engine, pair.longest_prompt = line, engine, prompt
    with contextlib.suppress(InputError):
        corrected_config(look(pair, tmp_path))


def test_the_nearest_engine_s_rules_and_an_unknown_family_are_said(tmp_path: Path) -> None:
    pair = Pair()
    pair.engine, pair.target["architectures"] = "sglang==0.5.14", ["NewForCausalLM"]
    engine, family = look(pair, tmp_path).notes
    assert "those of 0.5.9 are applied" in engine and "NewForCausalLM" in family
