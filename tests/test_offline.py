"""What notebook 03 predicts with: short replies, other heads, reports of several settings, aborted requests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3lib.engine.client import Response, save_responses
from eagle3lib.engine.speculation import common_setting, with_settings
from eagle3lib.errors import InputError
from eagle3lib.findings.acceptance_rules import report_findings
from eagle3lib.findings.gap import prediction_findings
from eagle3lib.findings.offline import Pair, break_down, open_pair, predict_served, read_wiring
from eagle3lib.maths.target import Target
from eagle3lib.measuring.prediction import continued, predict
from eagle3lib.measuring.sample_states import sample_states
from eagle3lib.reading.engine_reports import read_engine_reports
from eagle3lib.reading.samples import Sample
from eagle3lib.reading.setting import Setting
from tests.tiny import tiny_draft, tiny_target

PROMPTS = [list(range(5 + i, 15 + i)) for i in range(6)]
CHAIN = Setting(3, 1, 4)
SETTINGS = (Setting(1, 1, 2), CHAIN, Setting(5, 1, 6))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, list[list[int]]]:
    """A target, a draft of its whole vocabulary, and what the target says to each prompt."""
    root = tmp_path_factory.mktemp("pair")
    tiny_draft(root / "draft", tiny_target(root / "target", vocab=64), draft_vocab=64)
    return opened(root), Target.open(root / "target").greedy(PROMPTS, 60, stop=False)


def opened(root: Path) -> Pair:
    _, found = open_pair(str(root / "draft"), str(root / "target"), "", "sglang==0.5.23", root / "cache")
    assert isinstance(found, Pair), found
    return found


def samples(path: Path, said: list[list[int]], lengths: list[int]) -> str:
    rows = [{"input_ids": p + s[:n], "prompt_tokens": len(p)} for p, s, n in zip(PROMPTS, said, lengths, strict=False)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("setting", [CHAIN, Setting(3, 4, 8)], ids=str)
@pytest.mark.parametrize("rule", ["greedy", "target-only", "rejection"])
@pytest.mark.parametrize("lengths", [[1] * 4, [2] * 4, [6] * 4, [8] * 4, [9] * 4, [40, 1, 2, 3]], ids=str)
def test_replies_of_any_length_are_predicted_or_left_out_with_the_reason(
    pair: tuple, tmp_path: Path, lengths: list[int], rule: str, setting: Setting
) -> None:
    made = replace(pair[0], rule=rule)
    if rule == "rejection" and setting[1] > 1:
        pytest.skip("SGLang takes chains only")
    found = break_down(made, samples(tmp_path / "s.jsonl", pair[1], lengths), setting, temperature=0.7)
    assert bool(found.sources) != bool(found.left_out)
    if found.sources:
        steps = found.sources[0].verify_steps
        assert steps > 0 and found.settings[setting].denominator == steps


def test_reports_are_each_predicted_under_their_own_setting(pair: tuple, tmp_path: Path) -> None:
    """A folder of healthy runs at several settings: no finding, and the wiring of each as configured."""
    made, said = pair
    whole = [Sample(str(i), torch.tensor(p + s), torch.arange(70) >= 10, 10) for i, (p, s) in enumerate(
        zip(PROMPTS, said, strict=True))]  # fmt: skip
    longer = continued(whole, made.target)
    for setting in SETTINGS:
        responses = []
        for i, sample in enumerate(longer):
            states = sample_states(sample, made.target, made.wiring.boundaries)
            steps = predict(made.draft, made.wiring, states, setting, 16).steps
            counts = list(steps.histogram(setting.num_steps))
            meta = {
                "completion_tokens": 60, "spec_verify_ct": sum(counts), "spec_correct_drafts_histogram": counts,
            }  # fmt: skip
            responses.append(Response(i, tuple(PROMPTS[i]), tuple(said[i]), meta, 1.0, None, steps.accepted))
        name = f"steps{setting[0]}"
        save_responses(responses, tmp_path / f"{name}.jsonl")
        flags = "--speculative-num-steps {} --speculative-eagle-topk {} --speculative-num-draft-tokens {}"
        line = f"python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 {flags.format(*setting)}"
        (tmp_path / f"{name}.launch.txt").write_text(line)
    reports = with_settings(read_engine_reports(tmp_path), CHAIN, "")
    assert [report.setting for report in reports] == list(SETTINGS)
    assert common_setting(Setting(), reports[:1]) == SETTINGS[0] and common_setting(CHAIN, reports[:1]) == CHAIN
    assert common_setting(Setting(), reports) == Setting()
    predictions, why = predict_served(made, reports)
    assert why == "" and all(each.agreement.equal == each.agreement.steps > 50 for each in predictions)
    findings = [finding for report in reports for finding in report_findings(report)]
    for each in predictions:
        findings += prediction_findings(each.source, each.predicted_histograms, each.served_histograms)
    assert findings == []
    wirings = read_wiring(made, reports, 0.0, lambda share, words: None)
    assert {each.answer for each in wirings} == {"as configured"}


def test_a_request_that_gave_nothing_takes_none_of_the_others_along(pair: tuple, tmp_path: Path) -> None:
    responses = []
    for i, n in enumerate((40, 0, 40, 1)):
        meta = {"completion_tokens": n, "spec_verify_ct": max(n - 1, 0)}
        meta["spec_correct_drafts_histogram"] = [n - 1, 0, 0, 0] if n > 1 else []
        steps = (0,) * (n - 1) if n > 1 else None
        responses.append(Response(i, tuple(PROMPTS[i]), tuple(pair[1][i][:n]), meta, 1.0, None, steps))
    save_responses(responses, tmp_path / "r.jsonl")
    (report,) = read_engine_reports(tmp_path / "r.jsonl")
    found = report.with_tokens(64)
    assert [request.sample.input_ids[:10].tolist() for request in found] == [PROMPTS[0], PROMPTS[2]]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    tiny_draft(tmp_path / "draft", tiny_target(tmp_path / "target", vocab=64), draft_vocab=64)
    return tmp_path


def rewrite(root: Path, **tensors: torch.Tensor | None) -> None:
    weights = load_file(root / "draft" / "model.safetensors")
    for name, value in tensors.items():
        weights.pop(name.replace("__", "."), None)
        if value is not None:
            weights[name.replace("__", ".")] = value
    save_file(weights, root / "draft" / "model.safetensors")


@pytest.mark.parametrize("own", ["random", "none"])
def test_without_a_draft_vocabulary_the_targets_head_speaks(pair: tuple, broken: Path, own: str) -> None:
    """As SGLang does where ``draft_vocab_size`` is null; a head of the draft's own is then lost, and 01 says so."""
    config = json.loads((broken / "draft" / "config.json").read_text()) | {"draft_vocab_size": None}
    (broken / "draft" / "config.json").write_text(json.dumps(config))
    rewrite(broken, d2t=None, t2d=None, lm_head__weight=torch.randn(64, 64) if own == "random" else None)
    made = opened(broken)
    assert made.wiring.head == "target" and torch.equal(made.draft.target_head, made.target.lm_head)
    lost = [f.kind for f in made.inspection.findings if f.kind == "vocab.head_mismatch"]
    assert lost == (["vocab.head_mismatch"] if own == "random" else [])
    path = samples(broken / "s.jsonl", pair[1], [40] * 4)
    whole = break_down(pair[0], path, CHAIN).settings[CHAIN]  # that draft's own head is the target's
    assert break_down(made, path, CHAIN).settings[CHAIN] == whole


def test_a_map_of_another_length_than_the_head_is_one_clear_error(pair: tuple, broken: Path) -> None:
    rewrite(broken, d2t=torch.zeros(40, dtype=torch.long))
    made = opened(broken)
    found = break_down(made, samples(broken / "s.jsonl", pair[1], [40] * 4), CHAIN)
    assert "40 entries" in found.left_out and "64" in found.left_out
    with pytest.raises(InputError, match="one for each row of the head"):
        predict(made.draft, made.wiring, next(iter(made.dataset(str(broken / "s.jsonl")))), Setting(3, 4, 8))


def test_a_token_beyond_the_vocabulary_leaves_out_that_request_and_says_so(pair: tuple, tmp_path: Path) -> None:
    made, said = pair
    responses = []
    for i in range(3):
        words = tuple(said[i][:40]) if i else (*said[i][:39], 99999)
        meta = {"completion_tokens": 40, "spec_verify_ct": 39, "spec_correct_drafts_histogram": [39, 0, 0, 0]}
        responses.append(Response(i, tuple(PROMPTS[i]), words, meta, 1.0, None, (0,) * 39))
    save_responses(responses, tmp_path / "r.jsonl")
    reports = with_settings(read_engine_reports(tmp_path / "r.jsonl"), CHAIN, "")
    (found,), why = predict_served(made, reports)
    assert found.left_out == 1 and "1 of r.jsonl" in why
    _, why = predict_served(made, with_settings(reports, Setting(), ""))
    assert "num_steps is not known" in why


def test_lines_end_where_json_lines_end(tmp_path: Path) -> None:
    """A separator of Unicode's within a string is text, and the mark that Windows begins files with is none."""
    line = '\ufeff{"category": "a\u2028b\u0085c", "spec_verify_ct": 9, "spec_num_correct_drafts": 3}'
    (tmp_path / "r.jsonl").write_text(f"{line}\n{line[1:]}\n", encoding="utf-8")
    (report,) = read_engine_reports(tmp_path / "r.jsonl")
    assert len(report.requests) == 2


def test_a_stray_file_beside_a_report_is_worth_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"spec_verify_ct": 9, "spec_num_correct_drafts": 3}')
    (tmp_path / "server.log").write_text("nothing of interest")
    measured, stray = read_engine_reports(tmp_path)
    assert not list(report_findings(measured, others=True))
    assert [f.severity for f in report_findings(stray, others=True)] == ["note"]
    assert [f.severity for f in report_findings(stray)] == ["warning"]
