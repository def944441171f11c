"""Telling which of the target's states a captured stream is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from eagle3lib.errors import InputError
from eagle3lib.findings.capture_rules import capture_findings, stage_findings, stream_findings
from eagle3lib.measuring.replay import compare, first_divergence
from eagle3lib.measuring.streams import References, expected_boundaries, from_samples, match_streams
from eagle3lib.reading.captures import Capture, read_capture, write_capture
from eagle3lib.reading.samples import Sample
from tests.static_pairs import inspected

LAYERS, HIDDEN, ROWS = 8, 48, 40


@pytest.fixture(scope="module")
def states():
    """A stream as real ones are: neighbours alike, two huge channels, a first token unlike all others."""
    draw = torch.Generator().manual_seed(0)
    stream = torch.randn(ROWS, HIDDEN, generator=draw)
    stream[:, 3] += 80
    stream[:, 17] -= 60
    stream[0] *= 100
    found = {0: stream}
    for block in range(1, LAYERS + 1):
        stream = stream + 0.3 * torch.randn(ROWS, HIDDEN, generator=draw) * (1 + 0.1 * block)
        found[block] = stream
    scale = 1 + 0.1 * torch.randn(HIDDEN, generator=draw)
    found["final_norm"] = stream / stream.pow(2).mean(-1, keepdim=True).sqrt() * scale
    return found


def stack(states, *boundaries):
    return torch.stack([states[boundary] for boundary in boundaries], 1)  # [T, K, H]


def found(streams, states, **options):
    return [(match.boundary, match.shift) for match in match_streams([streams], [states], **options)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_state_is_told_from_its_neighbours(states, dtype):
    boundaries = list(states)
    assert found(stack(states, *boundaries).to(dtype), states) == [(boundary, 0) for boundary in boundaries]


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_rows_that_are_off_are_told_by_how_much(states, shift):
    rolled = stack(states, 0, 3, 6).roll(-shift, 0)
    assert found(rolled[2:-2], states, positions=[torch.arange(2, ROWS - 2)]) == [(b, shift) for b in (0, 3, 6)]


def test_positions_say_which_rows_a_capture_has(states):
    assert found(stack(states, 2, 5)[20:], states, positions=[torch.arange(20, ROWS)]) == [(2, 0), (5, 0)]


def test_a_state_from_within_a_block_is_none_of_them(states):
    between = (states[3] + states[4]) / 2
    [match] = match_streams([between[:, None]], [states])
    assert match.boundary is None and match.nearest in (3, 4)
    [finding] = judge([match], [3])
    assert finding.kind == "capture.unmatched"


def test_the_expected_boundary_may_have_a_near_neighbour(states):
    alike = states | {4: states[3] + 0.01 * (states[4] - states[3])}  # a block that hardly changes the state
    row = 0.8 * alike[3] + 0.2 * alike[4] + 0.02 * torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(3))
    assert found(row[:, None], alike) == [(None, 0)]
    assert found(row[:, None], alike, expected=[3]) == [(3, 0)]
    assert found(row[:, None], alike, expected=[6]) == [(None, 0)]


def reference_sample(states, normed):
    return Sample(
        "s", torch.arange(ROWS), torch.ones(ROWS), 1, states=stack(states, 0, 3, 6), boundaries=(0, 3, 6),
        last_hidden_state=states["final_norm" if normed else LAYERS], last_is_normed=normed,
    )  # fmt: skip


@pytest.mark.parametrize(("normed", "layers", "last"), [(True, None, "final_norm"), (False, LAYERS, LAYERS)])
def test_a_samples_last_state_stands_under_its_boundary(states, normed, layers, last, monkeypatch):
    sample = reference_sample(states, normed)
    monkeypatch.setattr("eagle3lib.measuring.streams.read_samples", lambda path, hidden: [sample])
    captured = capture(states, input_ids=torch.arange(ROWS))
    [by_boundary] = from_samples([captured], "", HIDDEN, layers=layers).states
    assert list(by_boundary) == [0, 3, 6, last]
    [unknown] = from_samples([captured], "", HIDDEN, layers=6).states
    assert list(unknown) == ([0, 3, 6, last] if normed else [0, 3, 6]) and unknown[6] is not states[LAYERS]


def test_samples_that_hold_more_states_than_were_captured_do_not_say_what_was_trained_on():
    held = References((), named=(0, 3, 6, 8))
    assert expected_boundaries((), held, None, (1, 2, 3), count=3)[0] == (1, 2, 3)
    assert expected_boundaries((), held, None, (1, 2, 3), count=4)[0] == (0, 3, 6, 8)
    assert expected_boundaries((), held, None, (1, 2, 3))[0] == (0, 3, 6, 8)


def test_an_unreduced_share_is_recognised(states):
    [match] = match_streams([stack(states, 5) / 2], [states])
    assert (match.boundary, match.nearest, match.scale) == (None, 5, 0.5)
    assert [finding.kind for finding in judge([match], [5])] == ["aux.partial_sum"]


def test_nothing_to_compare_is_refused(states):
    for streams, held in ([], []), ([stack(states, 1)], []), ([stack(states, 1)[:0]], [states]):
        with pytest.raises(InputError):
            match_streams(streams, held)
    with pytest.raises(InputError, match="reference 2"):
        match_streams([stack(states, 1)], [states | {2: states[2][:, :-1]}])


def judge(matches, expected):
    return list(stream_findings(matches, expected, inspected(LAYERS)))


#: captured boundaries, trained boundaries, the kinds of finding
CASES = [
    ((0, 3, 6), (0, 3, 6), []),
    ((3, 5, 7), (0, 3, 6), ["aux.layers"]),
    ((1, 4, 7), (0, 3, 6), ["aux.ids_convention"]),
    ((0, 3, 6), (6, 3, 0), ["aux.order"]),
    ((0, 3, "final_norm"), (0, 3, 8), ["aux.final_boundary"]),
    ((0, 3), (0, 3, 6), ["aux.count"]),
]


@pytest.mark.parametrize(("captured", "trained", "kinds"), CASES)
def test_captured_against_trained(states, captured, trained, kinds):
    matches = match_streams([stack(states, *captured)], [states], expected=trained)
    findings = judge(matches, trained)
    assert [finding.kind for finding in findings] == kinds
    assert all(finding.severity == "error" for finding in findings)
    if kinds == ["aux.layers"]:
        assert findings[0].edits[0].value == [-1, 2, 5]


@pytest.mark.parametrize(
    ("captured", "kinds"),
    [((2, 6, 9), []), ((2, 6), ["aux.count"]), ((2,), ["aux.count"]), ((3, 6, 9), ["aux.layers"])],
)
def test_captured_against_fc_and_the_engines_rule_where_nobody_knows_what_was_trained(captured, kinds):
    draw = torch.Generator().manual_seed(1)
    states = {0: torch.randn(ROWS, HIDDEN, generator=draw)}
    for block in range(1, 11):
        states[block] = states[block - 1] + 0.3 * torch.randn(ROWS, HIDDEN, generator=draw)
    inspection = inspected(30)  # captures boundaries 2, 6 and 9
    findings = list(stream_findings(match_streams([stack(states, *captured)], [states]), None, inspection))
    assert [finding.kind for finding in findings] == kinds and not any(finding.edits for finding in findings)


def capture(states, **changes):
    own = Capture(
        "r.safetensors",
        "r",
        torch.arange(ROWS),
        torch.arange(ROWS),
        {"aux_hidden_states": stack(states, 0, 3).flatten(1)},
    )
    return replace(own, **changes)


def kinds(*captures):
    return [finding.kind for finding in capture_findings(captures, HIDDEN)]


def test_captures_that_cannot_be_trusted(states):
    good = capture(states)
    aux = good.aux_hidden_states
    spoiled = aux.clone()
    spoiled[4, 5] = float("nan")
    assert kinds(good) == []
    assert kinds(capture(states, stages={"aux_hidden_states": aux[:-3]})) == ["capture.truncated"]
    assert kinds(capture(states, positions=torch.arange(ROWS) + 9)) == ["capture.truncated"]
    assert kinds(capture(states, stages={"aux_hidden_states": aux[:, :-1]})) == ["capture.layout"]
    assert kinds(capture(states, stages={"aux_hidden_states": spoiled})) == ["capture.nonfinite"]


def test_ranks_that_differ_hold_partial_sums(states):
    aux = capture(states).aux_hidden_states
    part = torch.randn(aux.shape, generator=torch.Generator().manual_seed(1)) * aux.std()
    ranks = [capture(states, rank=0, stages={"aux_hidden_states": aux / 2 + part})]
    ranks += [capture(states, rank=1, stages={"aux_hidden_states": aux / 2 - part})]
    assert kinds(*ranks) == ["aux.partial_sum"]
    assert kinds(capture(states, rank=0), capture(states, rank=1)) == []


def test_the_token_beside_a_state_is_the_next_one(states):
    ids = torch.randperm(500, generator=torch.Generator().manual_seed(2))[: ROWS + 2]
    stages = dict(capture(states).stages)
    right = capture(states, input_ids=ids[:ROWS], stages=stages | {"embedded_ids": ids[1 : ROWS + 1]})
    late = capture(states, input_ids=ids[:ROWS], stages=stages | {"embedded_ids": ids[2:]})
    assert kinds(right) == []
    assert kinds(late) == ["align.shift"]


def test_captures_are_read_as_they_were_written(states, tmp_path):
    write_capture(capture(states, rank=1), tmp_path / "b.safetensors")
    write_capture(capture(states), tmp_path / "a.safetensors")
    first, second = read_capture(tmp_path)
    assert (first.rank, second.rank, first.request) == (0, 1, "r")
    assert torch.equal(first.streams(HIDDEN), stack(states, 0, 3))


def test_a_folder_of_plain_tensors_is_one_capture(states, tmp_path):
    torch.save(stack(states, 0, 3)[None].flatten(2), tmp_path / "aux_hidden_states.pt")
    save_file({"x": torch.randn(ROWS, HIDDEN)}, tmp_path / "norm.safetensors")
    [plain] = read_capture(tmp_path)
    assert torch.equal(plain.streams(HIDDEN), stack(states, 0, 3))
    assert sorted(plain.stages) == ["aux_hidden_states", "norm"]


def test_captures_that_do_not_open_are_one_clear_error(states, tmp_path):
    with pytest.raises(InputError, match="no tensor file"):
        read_capture(tmp_path)
    path = write_capture(capture(states), tmp_path / "a.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged"):
        read_capture(tmp_path)
    save_file({"aux_hidden_states": torch.ones(2, 4), "input_ids": torch.ones(2)}, path)
    with pytest.raises(InputError, match="positions"):
        read_capture(tmp_path)


def test_the_first_stage_that_differs_is_named():
    ones = torch.ones(2, 3)
    diffs = [compare("fc", ones * 1.1, ones), compare("norm", ones + 1e-6, ones)]
    assert [(diff.stage, diff.ok) for diff in diffs] == [("fc", False), ("norm", True)]
    assert first_divergence(diffs) == "fc" and first_divergence(diffs[1:]) is None
    with pytest.raises(InputError, match="norm"):
        compare("norm", ones[:1], ones)
    with pytest.raises(InputError, match="not empty"):
        compare("norm", ones[:0], ones[:0])


def test_the_first_stage_that_differs_is_an_error_and_rounding_is_none():
    same, ones = torch.ones(2, 3), torch.ones(2, 3)
    fine = compare("fc", same * (1 + 1e-6), ones)
    assert not [*stage_findings([fine]), *stage_findings([])]
    (found,) = stage_findings([fine, compare("attention_output", same * 1.3, ones), compare("norm", same * 2, ones)])
    assert (found.kind, found.severity, found.subject) == ("capture.diverged", "error", "attention_output")


@pytest.mark.parametrize("odd", [5, "abc", [0, 3, 400], [0, True, 3], None])
def test_another_notebooks_odd_boundaries_are_passed_over(states, odd):
    held = References((states,), None)
    found, why = expected_boundaries((), held, {"results": {"best_boundaries": odd}}, (0, 3, 6))
    assert found == (0, 3, 6) and "config" in why
