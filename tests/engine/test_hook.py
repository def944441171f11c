"""The capture hook under SGLang's own registration, on modules shaped like its models."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from eagle3lib.engine.capture import assemble
from eagle3lib.engine.client import Response
from eagle3lib.engine.hook import specifications
from eagle3lib.errors import InputError

hook_manager = pytest.importorskip("sglang.srt.model_executor.hook_manager")
HIDDEN = 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.ModuleDict({"qkv_proj": nn.Linear(HIDDEN, 8), "o_proj": nn.Linear(8, HIDDEN)})

    def forward(self, hidden):
        return self.self_attn["o_proj"](self.self_attn["qkv_proj"](hidden))


class Norm(nn.Module):
    def forward(self, hidden):
        return hidden / 2, hidden


class Inner(nn.Module):
    """A draft where ``aux_states`` are given, else a target."""

    def __init__(self, aux_states: int, fc_norm: bool) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList([Layer()]), Norm()
        if aux_states:
            self.fc = nn.Linear(aux_states * HIDDEN, HIDDEN)
        self.fc_norm = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(aux_states)) if fc_norm else None

    def forward(self, input_ids, positions, batch, aux):
        if aux.shape[-1] == HIDDEN:
            return self.norm(self.layers[0](aux))
        chunks = aux.split(HIDDEN, -1)
        if self.fc_norm is not None:
            chunks = [norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)]
        hidden = self.fc(torch.cat(chunks, -1))
        return self.norm(self.layers[0](hidden))


def registered(folder, aux_states=0, fc_norm=False):
    outer = nn.Module()
    outer.model = Inner(aux_states, fc_norm)
    hook_manager.register_forward_hooks(outer, json.loads(specifications(folder, max_rows=9)))
    return outer.model


def forward(model, positions, aux):
    batch = SimpleNamespace(forward_mode=SimpleNamespace(name="EXTEND"), seq_lens=[0])
    with torch.no_grad():
        model(torch.tensor(positions) + 101, torch.tensor(positions), batch, aux)


def response(prompt, output):
    return Response(0, tuple(range(100, 100 + prompt)), tuple(range(100 + prompt, 100 + prompt + output)), {}, 0.0)


@pytest.mark.parametrize("fc_norm", [False, True])
def test_the_draft_is_recorded_before_its_norms_and_the_target_not_at_all(tmp_path, fc_norm):
    target, draft = registered(tmp_path), registered(tmp_path, 3, fc_norm)
    prefill, verified, again = (torch.randn(rows, 3 * HIDDEN) for rows in (3, 3, 2))
    forward(target, [0, 1, 2], torch.randn(3, HIDDEN))
    forward(draft, [0, 1, 2], prefill)
    forward(draft, [3], torch.randn(1, HIDDEN))  # a decode pass of the draft: its own state, fc passed over
    forward(draft, [3, 4, 5], verified)  # the drafts at 4 and 5 were rejected
    forward(draft, [4, 5], again)
    [capture] = assemble(tmp_path, "0000", response(3, 3))
    assert torch.equal(capture.aux_hidden_states, torch.cat([prefill, verified[:1], again[:1]]))
    assert capture.positions.tolist() == [0, 1, 2, 3, 4]
    assert capture.stages["embedded_ids"].tolist() == capture.input_ids.tolist()[1:] + [105]
    assert {name: value.shape[1] for name, value in capture.stages.items() if value.dim() == 2} == {
        "aux_hidden_states": 3 * HIDDEN, "fc": HIDDEN, "qkv_input": HIDDEN, "attention_output": HIDDEN,
        "norm": HIDDEN, "residual": HIDDEN,
    }  # fmt: skip


def test_a_capture_is_bounded_and_an_empty_one_is_said(tmp_path):
    draft = registered(tmp_path, 3)
    with pytest.raises(InputError, match="fc"):
        assemble(tmp_path, "0000", response(3, 3))
    for _ in range(5):
        forward(draft, [0, 1, 2], torch.randn(3, 3 * HIDDEN))
    assert len(list(tmp_path.glob("*.safetensors"))) == 3  # 9 rows
    assert len(list(tmp_path.iterdir())) == 3, "no file is left half written"
