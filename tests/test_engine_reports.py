"""Every spelling of acceptance that people have, one small literal each."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib.engine.client import Response, accepted_per_step, save_responses
from eagle3lib.errors import InputError
from eagle3lib.findings.acceptance_rules import report_findings, training_findings
from eagle3lib.measuring.acceptance import from_report, from_training
from eagle3lib.measuring.rates import Rate
from eagle3lib.reading.engine_reports import parse_engine_report, read_engine_reports
from eagle3lib.reading.run_flags import differing
from eagle3lib.reading.samples import read_samples
from eagle3lib.reading.training_reports import checkpoints, parse_training_report, read_training_report
from eagle3lib.reporting import figures, tables

NEW = {
    "completion_tokens": 18, "spec_verify_ct": 10,
    "spec_num_correct_drafts": 7, "spec_num_proposed_drafts": 30,
    "spec_accept_length": 1.8, "spec_accept_rate": 7 / 30, "spec_correct_drafts_histogram": [5, 3, 2],
}  # fmt: skip
OLD = {
    "completion_tokens": 18, "spec_verify_ct": 10, "spec_accept_token_num": 7, "spec_draft_token_num": 30,
    "spec_accept_histogram": [5, 3, 2],
}  # fmt: skip
OPENAI = {
    "usage": {"completion_tokens": 18, "prompt_tokens": 4},
    "choices": [{"index": 0, "message": {}}],
    "sglext": {"spec_tokens_details": {key: NEW[key] for key in list(NEW)[1:]}},
}
IN_CHOICE = {"usage": OPENAI["usage"], "choices": [{"index": 0, "message": {}, "meta_info": NEW}]}
IN_SGLEXT = {**OPENAI, "sglext": OPENAI["sglext"]["spec_tokens_details"]}
SGLANG_LOG = """
[2026-11-29] Decode batch, #running-req: 1, #token: 90, accept len: 1.60, accept rate: 0.20, cuda graph: True
[2026-11-29] Prefill batch, #new-seq: 1
[2026-11-29] Decode batch, #running-req: 3, #token: 90, accept len: 1.80, accept rate: 0.27, cuda graph: True
"""
SGLANG_METRICS = """
# HELP sglang:spec_accept_length x
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m",tp_rank="0"} 1.7
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{model_name="m",tp_rank="0"} 0.23
"""
VLLM_METRICS = """
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0"} 10
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0"} 30
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 7
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 5
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 2
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 0
"""
VLLM_LOG = (
    "INFO SpecDecoding metrics: Mean acceptance length: 1.70, Accepted throughput: 0.7 tokens/s, "
    "Drafted throughput: 3.00 tokens/s, Accepted: 7 tokens, Drafted: 30 tokens, "
    "Per-position acceptance rate: 0.500, 0.200, 0.000, Avg Draft acceptance rate: 23.3%"
)
VLLM_BENCH = {
    "spec_decode_acceptance_rate": 23.3, "spec_decode_acceptance_length": 1.7, "spec_decode_num_drafts": 10,
    "spec_decode_draft_tokens": 30, "spec_decode_accepted_tokens": 7,
    "spec_decode_per_position_acceptance_rates": [0.5, 0.2],
}  # fmt: skip
STEPS = [0, 1, 2, 0, 0, 1, 2, 1, 0, 0]

#: name -> (text, form, accept length, histogram)
SOURCES = {
    "meta_info": (json.dumps(NEW), "histogram", 1.7, (5, 3, 2)),
    "old meta_info": (json.dumps(OLD), "histogram", 1.7, (5, 3, 2)),
    "response": (json.dumps({"text": "", "meta_info": NEW}), "histogram", 1.7, (5, 3, 2)),
    "JSONL": (json.dumps(NEW) + "\n" + json.dumps(OLD) + "\n", "histogram", 1.7, (10, 6, 4)),
    "counters": (json.dumps({k: OLD[k] for k in list(OLD)[:4]}), "counters", 1.7, None),
    "only steps": ('{"completion_tokens": 120, "spec_verify_ct": 40}', "completion", 3.0, None),
    "OpenAI": (json.dumps(OPENAI), "histogram", 1.7, (5, 3, 2)),
    "OpenAI, in a choice": (json.dumps(IN_CHOICE), "histogram", 1.7, (5, 3, 2)),
    "OpenAI, in sglext": (json.dumps(IN_SGLEXT), "histogram", 1.7, (5, 3, 2)),
    "SGLang log": (SGLANG_LOG, "window", 1.75, None),
    "old SGLang log": ("Decode batch. #running-req: 1, accept len: 2.31, gen", "window", 2.31, None),
    "server_info": ('{"internal_states": [{"avg_spec_accept_length": 1.7}]}', "average", 1.7, None),
    "SGLang metrics": (SGLANG_METRICS, "average", 1.7, None),
    "vLLM metrics": (VLLM_METRICS, "histogram", 1.7, (5, 3, 2, 0)),
    "vLLM log": (VLLM_LOG, "histogram", 1.7, (5, 3, 2, 0)),
    "vLLM object": ('{"num_drafts": 10, "num_accepted_tokens_per_pos": [5, 2]}', "histogram", 1.7, (5, 3, 2)),
    "list": (json.dumps(STEPS), "histogram", 1.7, (5, 3, 2)),
    "list of lists": (json.dumps([STEPS, STEPS]), "histogram", 1.7, (10, 6, 4)),
    "vLLM bench": (json.dumps(VLLM_BENCH), "histogram", 1.7, (5, 3, 2)),
    "vLLM bench, rounded": (json.dumps(VLLM_BENCH | {"spec_decode_accepted_tokens": 8}), "counters", 1.8, None),
    "mean without bonus": ('{"accept_length": 0.7, "bonus": false}', "average", 1.7, None),
    "EAGLE's alpha": ('{"alpha": [5, 2], "alpha_num": [10, 5]}', "alpha", 1.7, None),
    "benchmark": ('{"output_throughput": 90.5, "accept_length": 1.7}', "average", 1.7, None),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_becomes_the_one_arithmetic(name):
    text, form, length, histogram = SOURCES[name]
    report = parse_engine_report(text, name)
    found = from_report(report)
    assert report.form == form
    assert found.accept_length.value == pytest.approx(length)
    assert found.histogram == histogram
    assert not list(report_findings(replace(report, setting=(3, 1, 4))))


UNMEASURED = [
    '{"accept_length": 0.0}',
    '{"completion_tokens": 120, "spec_verify_ct": 0}',
    '{"completion_tokens": 12, "id": "x"}',
    '{"spec_verify_ct": 0, "spec_accept_length": 0.0, "spec_correct_drafts_histogram": []}',
    '{"internal_states": [{"model_path": "m"}]}',
    "Decode batch, #running-req: 0, accept len: 0.00, accept rate: 0.00, cuda graph: True",
    "Decode batch, #running-req: 2, #token: 90, gen throughput (token/s): 88.0",
]


@pytest.mark.parametrize("text", UNMEASURED)
def test_zero_and_absent_mean_not_measured(text):
    report = parse_engine_report(text, "x")
    assert from_report(report).accept_length is None
    assert [(f.kind, f.severity) for f in report_findings(report)] == [("metric.unmeasured", "warning")]


IMPOSSIBLE = [
    '{"accept_length": 0.4}',
    '{"spec_verify_ct": 9, "spec_correct_drafts_histogram": [5, 3, 2]}',
    '{"spec_verify_ct": 10, "spec_num_correct_drafts": 31, "spec_num_proposed_drafts": 30}',
    '{"spec_verify_ct": 41, "completion_tokens": 40}',
    '{"spec_correct_drafts_histogram": [5, 3, 2, 0, 1]}',
    '{"completion_tokens": 96, "spec_verify_ct": 50, "spec_num_correct_drafts": 500}',
    '{"completion_tokens": 400, "spec_verify_ct": 50}',
    "[0, 1, -1]",
    "accept len: 2.31, accept rate: 1.31, gen throughput",
]


@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_a_value_that_no_run_can_give_is_an_error(text):
    findings = list(report_findings(replace(parse_engine_report(text, "x"), setting=(3, 4, 8))))
    assert ("metric.impossible", "error") in [(finding.kind, finding.severity) for finding in findings]


def test_the_old_rate_with_the_bonus_token_in_is_named():
    report = parse_engine_report("accept len: 2.40, accept rate: 0.60, cuda graph: True", "x")
    assert [finding.kind for finding in report_findings(replace(report, setting=(None, None, 4)))] == [
        "metric.definition"
    ]


def test_a_root_counted_as_a_draft_is_named():
    text = json.dumps(NEW | {"spec_num_proposed_drafts": 40})
    findings = list(report_findings(replace(parse_engine_report(text, "x"), setting=(None, None, 4))))
    assert [finding.kind for finding in findings] == ["metric.definition"]


HUGE = "9" * 400
NO_REPORT = [
    "", "hello", "[0.5, 0.3]", '{"spec_verify_ct": "many"}', '{"spec_verify_ct": 1.5}', "[true]", "[1000000000]",
    '{"meta_info": []}', '{"meta_info": "x"}', '{"internal_states": 5}', '{"choices": [], "usage": [1]}',
    '{"meta_info": {}, "accepted_per_step": "abc"}', '{"meta_info": {}, "accepted_per_step": [1, "x"]}',
    '{"meta_info": {}, "accepted_per_step": 5}', '{"meta_info": {}, "category": ["a"]}',
    f'{{"spec_verify_ct": {HUGE}}}', f"[{HUGE}]", f"[{HUGE * 11}]", "[" * 900 + "]" * 900, "[" * 99999,
    VLLM_METRICS[:-40], VLLM_METRICS.replace('"2"', '"x"'), SGLANG_METRICS.rstrip()[:-5],
]  # fmt: skip


@pytest.mark.parametrize("text", NO_REPORT)
def test_what_is_no_report_is_one_clear_error(text):
    with pytest.raises(InputError, match="engine report x"):
        parse_engine_report(text, "x")


KEYS = (
    "meta_info", "choices", "usage", "sglext", "internal_states", "alpha", "alpha_num", "num_drafts",
    "num_accepted_tokens_per_pos", "category", "spec_decode_num_drafts", "spec_decode_per_position_acceptance_rates",
    "accepted_per_step", "spec_verify_ct", "accept_length", "spec_correct_drafts_histogram",
    "spec_num_correct_drafts", "completion_tokens", "prompt_tokens", "bonus", "server_args",
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(int(HUGE))
ANYTHING = st.recursive(
    LEAVES | st.integers(0, 3) | st.lists(st.integers(0, 3)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(ANYTHING)
def test_any_json_is_a_report_or_one_clear_error(content):
    try:
        report = replace(parse_engine_report(json.dumps(content), "x"), setting=(3, 1, 4))
    except InputError:
        return
    list(report_findings(report))
    if report.form != "unmeasured":
        json.dumps(asdict(from_report(report)), allow_nan=False)


def test_saved_responses_are_engine_reports_and_samples(tmp_path):
    steps = accepted_per_step([1, 2, 4, 7], {"spec_correct_drafts_histogram": [1, 1, 0, 1]})  # the last was cut
    response = Response(0, (5, 6), (7, 8, 9), NEW, 0.5, "maths", steps)
    path = save_responses([response, response], tmp_path / "served.jsonl")
    [report] = read_engine_reports(path)
    assert from_report(report).histogram == (10, 6, 4)
    assert [(r.category, r.steps, r.prompt_tokens) for r in report.requests] == [("maths", (0, 1, 3), 2)] * 2
    sample = next(iter(read_samples(path, 4)))
    assert (sample.input_ids.tolist(), sample.prompt_tokens) == ([5, 6, 7, 8, 9], 2)


@pytest.mark.parametrize("counts", [[1, 4, 7], [2, 4, 7], []])
def test_an_order_of_steps_is_not_made_up(counts):
    assert accepted_per_step(counts, {"spec_correct_drafts_histogram": [1, 1, 0, 1]}) is None
    assert accepted_per_step(counts, {}) is None


FLAGS = "server_args={'tp_size': 4, 'enable_dp_attention': True, 'port': 1}\n"


def test_the_flags_of_a_run_come_from_its_log_or_from_a_file_beside_it(tmp_path):
    assert parse_engine_report(FLAGS + SGLANG_LOG, "x").flags == {"tp_size": 4, "enable_dp_attention": True, "port": 1}
    within = {"meta_info": NEW, "server_args": {"tp_size": 4, "mem_fraction_static": None}}
    for text in (json.dumps(within), json.dumps([within]), json.dumps(within) + "\n" + json.dumps(within)):
        assert parse_engine_report(text, "x").flags == {"tp_size": 4}
    old = "server_args=ServerArgs(tp_size=4, dtype='auto', hooks=None)" + SGLANG_LOG
    assert parse_engine_report(old, "x").flags == {"tp_size": 4, "dtype": "auto"}
    assert parse_engine_report("server_args={4}" + SGLANG_LOG, "x").flags == {}
    (tmp_path / "a.jsonl").write_text(json.dumps(NEW))
    (tmp_path / "b.jsonl").write_text(json.dumps(NEW))
    (tmp_path / "a.server_info.json").write_text('{"tp_size": 4, "internal_states": [], "port": 3}')
    (tmp_path / "b.launch.txt").write_text("python -m sglang.launch_server --tp 4 --enable-dp-attention --port 4")
    one, two = read_engine_reports(tmp_path)
    assert differing(one.flags, two.flags) == {"enable_dp_attention": (None, True)}


def test_a_folder_may_hold_other_things_and_what_is_damaged_is_named(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(NEW)[:-9])
    (tmp_path / "b.json").write_text(json.dumps(NEW))
    (tmp_path / "README.md").write_text(SGLANG_LOG)
    (tmp_path / "plot.png").write_bytes(bytes(range(256)))
    broken, good = read_engine_reports(tmp_path)
    assert (broken.source, good.form) == ("a.json", "histogram") and from_report(good).accept_length.value == 1.7
    [finding] = report_findings(broken)
    assert finding.kind == "metric.unmeasured" and "a.json: found broken JSON" in finding.evidence
    (tmp_path / "b.json").unlink()
    with pytest.raises(InputError, match=r"a\.json"):
        read_engine_reports(tmp_path)
    with pytest.raises(InputError, match="broken JSON in line 3"):
        parse_engine_report(f"{json.dumps(NEW)}\n\n{json.dumps(NEW)[:-9]}\n", "cut.jsonl")


def test_each_file_is_one_source(tmp_path):
    (tmp_path / "b.json").write_text(json.dumps(NEW))
    (tmp_path / "a.log").write_text(SGLANG_LOG)
    assert [report.source for report in read_engine_reports(tmp_path)] == ["a.log", "b.json"]


#: text -> (trainer, conditional, accept length)
GOOD, FIRST = (0.5, 0.4), (0.5, None)
TRAINING = {
    '{"trainer": "Speculators", "metric": "cond_acc", "values": [0.5, 0.4]}': ("speculators", GOOD, 1.7),
    '{"trainer": "speculators", "metric": "full_acc", "values": [0.5, 0.2]}': ("speculators", GOOD, 1.7),
    '{"val/full_acc_0": 0.5, "val/full_acc_1": 0.2, "val/loss": 2.0}': ("speculators", GOOD, 1.7),
    '{"eval/per_position_acc": [0.5, 0.4], "eval/avg_loss": 2.0}': ("specforge", FIRST, None),
    '{"trainer": "specforge", "metric": "simulated_acc_len", "value": 0.7}': ("specforge", None, 1.7),
    '{"estimated_training_ar": 1.7}': ("modelopt", None, 1.7),
    '{"train_acc/parallel_0_step_0": 0.5, "train_acc/parallel_0_step_1": 0.4}': ("modelopt", FIRST, None),
    "step 10 val/cond_acc_0: 0.3 val/cond_acc_1: 0.2\nstep 20 val/cond_acc_0: 0.5 val/cond_acc_1: 0.4": (
        "speculators", GOOD, 1.7,
    ),
    "step 10 estimated_training_ar: 1.7\nstep 20 estimated_training_ar: [1.9, x]": ("modelopt", None, 1.7),
}  # fmt: skip


@pytest.mark.parametrize("text", TRAINING)
def test_each_trainer_is_read_under_its_own_definition(text):
    trainer, conditional, length = TRAINING[text]
    [report] = read_training_report(text) if text[0] == "{" else parse_training_report(text, "x")
    assert report.trainer == trainer
    if conditional is None or None in conditional:
        assert report.conditional == conditional
    else:
        assert report.conditional == pytest.approx(conditional)
    found = from_training(report).accept_length
    assert found is None if length is None else found.value == pytest.approx(length)


def test_an_accuracy_with_true_tokens_fed_is_acceptance_at_the_first_depth_alone():
    [report] = parse_training_report('{"trainer": "eagle", "metric": "acc", "values": [0.6, 0.5, 0.4]}', "x")
    found = from_training(report, num_steps=3)
    assert [each.value for each in found.accuracy] == [0.6, 0.5, 0.4] and found.accept_length is None
    assert found.conditional == found.marginal == (Rate(0.6, None, None, None), None, None)
    assert tables.length(found.accuracy[0]) == "0.600" and tables.counts(found.accuracy[0]) == ""
    assert figures.acceptance([found]).axes and tables.sources([found]).data["kind"].tolist() == ["training"]
    [cond] = parse_training_report('{"trainer": "speculators", "metric": "cond_acc", "values": [0.6, 0.5]}', "x")
    assert from_training(cond).accuracy is None


@pytest.mark.parametrize("text", ['{"metric": "accuracy", "value": 0.6}', "0.61", "1.7", "[0.61, 0.48]"])
def test_an_accuracy_without_a_definition_is_called_ambiguous(text):
    [report] = read_training_report(text)
    assert report.conditional is None and report.marginal is None
    [finding] = training_findings(report)
    assert finding.kind == "metric.definition" and "trainer not named" in finding.evidence
    assert checkpoints(text) == []


@pytest.mark.parametrize(
    "metric, values",
    [("full_acc", [0.41, 0.48]), ("full_acc", [61, 48]), ("cond_acc", [0.6, 48]), ("cond_acc", [-0.1])],
)
def test_what_no_training_can_give_is_an_error_and_not_published(metric, values):
    [report] = read_training_report(json.dumps({"trainer": "speculators", "metric": metric, "values": values}))
    assert [finding.kind for finding in training_findings(report)] == ["metric.impossible"]
    found = from_training(report, num_steps=2)
    assert found.marginal is found.conditional is found.accept_length is found.accuracy is None


@settings(deadline=None, max_examples=200)
@given(ANYTHING)
def test_any_json_is_a_training_report_or_one_clear_error(content):
    text = json.dumps(content).replace("spec_verify_ct", "metric").replace("accepted_per_step", "values")
    for given_text in (text, text[:-1], text.replace("alpha", "full_acc_0")):
        try:
            for report in parse_training_report(given_text, "x"):
                list(training_findings(report))
                from_training(report, num_steps=3)
        except InputError:
            continue
