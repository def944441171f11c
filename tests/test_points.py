"""Throughput points: read, summarised, and what follows from them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from eagle3lib.engine.server import _command
from eagle3lib.engine.sweep import run_sweep, setting_launch
from eagle3lib.errors import InputError
from eagle3lib.findings.acceptance_rules import cost_findings
from eagle3lib.measuring.sweep import recommend, summarise
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.points import OFF, Point, parse_points, read_points
from eagle3lib.reporting import tables

CHAIN = (3, 1, 4)
SERVING = {
    "output_throughput": 90.0, "max_concurrency": 4, "accept_length": 2.1, "concurrency": 3.6,
    "server_info": {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3,
                    "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4},
}  # fmt: skip
BENCH = {
    "batch_size": 4,
    "steps": 3,
    "topk": 1,
    "num_draft_tokens": 4,
    "acc_length": 2.1,
    "step_time": 0.0933,
    "speed": 22.5,
}

SOURCES = {
    "JSONL": '{"num_steps": 3, "topk": 1, "num_draft_tokens": 4, "concurrency": 4, '
    '"tokens_per_second": 90, "accept_length": 2.1}\n',
    "CSV": "num_steps,topk,num_draft_tokens,concurrency,tokens_per_second,accept_length\n3,1,4,4,90,2.1\n",
    "serving benchmark": json.dumps(SERVING),
    "bench_speculative": json.dumps(BENCH),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_point(name):
    [point] = parse_points(SOURCES[name], name)
    assert (point.setting, point.concurrency, point.accept_length) == (CHAIN, 4, 2.1)
    assert point.tokens_per_second == pytest.approx(90.0)


def test_no_speculation_is_read_as_such():
    serving = SERVING | {"server_info": {"speculative_algorithm": None, "speculative_num_steps": None}}
    bench = BENCH | {"steps": 0, "topk": 0, "num_draft_tokens": 0, "acc_length": 1.0}
    for record in (serving, bench):
        [point] = parse_points(json.dumps(record), "x")
        assert (point.setting, point.accept_length) == (OFF, None)


BAD = [
    "hello",
    '{"num_steps": 3}',
    '{"num_steps": 3, "topk": 1, "num_draft_tokens": 4, "tokens_per_second": 0}',
    '{"num_steps": 3, "topk": 1, "num_draft_tokens": 4, "tokens_per_second": NaN}',
    '{"num_steps": 3, "topk": 1, "num_draft_tokens": 4, "tokens_per_second": 9, "accept_length": 0.4}',
    '{"num_steps": 3, "topk": 0, "num_draft_tokens": 4, "tokens_per_second": 9}',
    '{"num_steps": 1.5, "topk": 1, "num_draft_tokens": 4, "tokens_per_second": 9}',
    '{"num_steps": 3, "topk": 1, "num_draft_tokens": 4, "tokens_per_second": 9}\n{"num_steps"',
    '{"num_steps": 3, "topk": 1, "num_draft_tokens": 4, "tokens_per_second": 1e20}',
    json.dumps({**SERVING, "server_info": [1]}),
    json.dumps({**BENCH, "steps": None}),
    "[" * 5000,
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_point_is_one_clear_error(text, tmp_path):
    (tmp_path / "points.jsonl").write_text(text)
    with pytest.raises(InputError):
        read_points(tmp_path / "points.jsonl")


def points(setting, *speeds, concurrency=1, accept_length=None):
    return [
        Point(*setting, concurrency=concurrency, tokens_per_second=speed, accept_length=accept_length, repeat=repeat)
        for repeat, speed in enumerate(speeds)
    ]


#: speeds without and with speculation -> what is recommended
CASES = [
    ((100, 101, 99), (150, 152, 149), {"num_steps": 3, "topk": 1, "num_draft_tokens": 4}),
    ((100, 80, 120), (104, 99, 109), "off"),
    ((80, 100, 120), (88, 111, 131), {"num_steps": 3, "topk": 1, "num_draft_tokens": 4}),  # paired: always faster
    ((100,), (103,), "off"),
    ((100,), (130,), {"num_steps": 3, "topk": 1, "num_draft_tokens": 4}),
    ((100, 101, 99), (70, 71, 69), "off"),
    ((), (150, 152, 149), None),
    ((100, 101, 99), (), None),
]


@pytest.mark.parametrize(("off", "on", "answer"), CASES)
def test_speculation_is_recommended_only_where_a_speed_up_is_shown(off, on, answer):
    assert recommend(summarise(points(OFF, *off) + points(CHAIN, *on))) == {"1": answer}


@pytest.mark.parametrize(
    ("off", "on", "answer", "kept", "note"),
    [
        ((100, 101, 99), (0.39, 176.1, 177.4), "chain", 2, "left out"),  # a first start that compiled
        ((0.5, 100, 101, 99), (150, 151, 149, 152), "chain", 4, ""),  # the baseline's own
        ((100, 101, 99), (60, 150, 151), "chain", 2, "left out"),
        ((100, 101, 99), (80, 150, 151), "off", 3, ""),  # no warm-up is that near
        ((100, 101), (1, 176), "off", 2, "is kept"),
    ],
)
def test_a_warm_up_is_left_out_and_said(off, on, answer, kept, note):
    baseline, chain = summarise(points(OFF, *off) + points(CHAIN, *on))
    expected = dict(zip(("num_steps", "topk", "num_draft_tokens"), CHAIN, strict=True)) if answer == "chain" else "off"
    assert recommend([baseline, chain]) == {"1": expected}
    assert chain.repeats == kept and note in chain.reason and bool(chain.reason) == bool(note)


def test_a_setting_is_judged_as_it_was_served():
    asked = points(OFF, 100, 101) + points((3, 1, 8), 150, 152) + points(CHAIN, 154, 150)
    [_, chain] = summarise(asked)
    assert (chain.setting, chain.repeats, chain.tokens_per_second) == (CHAIN, 4, 151.5)
    assert chain.reason == "asked for 3/1/8, served as 3/1/4"
    assert recommend(summarise(asked)) == {"1": {"num_steps": 3, "topk": 1, "num_draft_tokens": 4}}
    noted = [replace(point, reason="served as 2/4/8") for point in points((3, 4, 9), 150)]
    assert summarise(noted)[0].setting == (2, 4, 8)
    assert [s.setting for s in summarise([Point(3, 1, 8, status="refused")])] == [(3, 1, 8)]


def test_a_load_without_a_comparison_is_not_measured():
    refused = [Point(*CHAIN, concurrency=8, status="refused")]
    by_load = recommend(summarise(points(OFF, 100) + points(CHAIN, 90) + points(OFF, 300, concurrency=8) + refused))
    assert by_load == {"1": "off", "8": None}
    assert "8 in flight: not measured" in tables.recommendation(by_load, on_cpu=False).data
    best = tables.recommendation({"1": {"num_steps": 3, "topk": 1, "num_draft_tokens": 4}}, on_cpu=False)
    assert "1 in flight: 3/1/4" in best.data


def test_a_sweep_of_nothing_is_refused_and_empty_paths_stay_off_the_line(tmp_path):
    with pytest.raises(InputError, match="target"):
        run_sweep(Launch.parse(""), "", "", [], grid=[OFF], concurrency=[1], path=tmp_path / "points.jsonl")
    line = _command(Launch.parse("--model-path m"), "", "", 1)
    assert line[-6:] == ["--model-path", "m", "--host", "127.0.0.1", "--port", "1"]


def test_each_load_is_judged_on_its_own_and_failures_are_carried_along():
    measured = points(OFF, 100, 101) + points(CHAIN, 150, 152) + points((5, 1, 6), 160, 161)
    measured += points(OFF, 400, 401, concurrency=8) + points(CHAIN, 300, 302, concurrency=8)
    measured += [Point(8, 8, 64, concurrency=8, status="refused", reason="out of memory")]
    summaries = summarise(measured)
    five = {"num_steps": 5, "topk": 1, "num_draft_tokens": 6}
    assert recommend(summaries) == {"1": five, "8": "off"}
    assert [(s.status, s.reason, s.speedup) for s in summaries][-1] == ("refused", "out of memory", None)


@pytest.mark.parametrize(("on_cpu", "severity"), [(True, "note"), (False, "warning")])
def test_accepted_well_and_still_slower_is_a_cost(on_cpu, severity):
    off = points(OFF, 100, 101, 99)
    slow = summarise(off + points(CHAIN, 70, 71, 69, accept_length=2.4))
    assert [(f.kind, f.severity) for f in cost_findings(slow, on_cpu=on_cpu)] == [("cost.not_worth_it", severity)]
    poor = summarise(off + points(CHAIN, 70, 71, 69, accept_length=1.1))
    fast = summarise(off + points(CHAIN, 140, 141, 139, accept_length=2.4))
    assert not [*cost_findings(poor, on_cpu=on_cpu), *cost_findings(fast, on_cpu=on_cpu)]


def test_a_setting_replaces_the_speculative_flags_alone():
    launch = Launch.parse(
        "A=1 python -m sglang.launch_server --dtype float32 --speculative-algorithm EAGLE3 --speculative-num-steps 7"
    )
    chain, off = setting_launch(launch, CHAIN), setting_launch(launch, OFF)
    assert (chain.integer("speculative_num_steps"), chain.integer("speculative_num_draft_tokens")) == (3, 4)
    assert [name for name in off.flags if name.startswith("speculative")] == []
    assert chain.env == off.env == {"A": "1"} and off.text("dtype") == "float32"
