"""Why the CPU stand-in is trusted: speculation changes no token and captures the target's states."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.engine.engine_jobs import Job, greedy, run_jobs
from tests.tiny import tiny_draft, tiny_target

pytest.importorskip("sglang")
pytestmark = pytest.mark.engine

PROMPTS = ((1, 10, 20, 30, 40), (1, 11, 22, 33, 44, 55, 66), (1, 7, 9))
#: (num_steps, topk, num_draft_tokens); ``None`` is no speculation.
SETTINGS = [None, (3, 1, 4), (5, 1, 6), (3, 4, 8), (2, 8, 16)]
STATES_OF = (3, 1, 4)
LAYER_IDS, BOUNDARIES = (-1, 3, 6), (0, 4, 7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
def target(folder):
    return tiny_target(folder / "target")


@pytest.fixture(scope="module")
def served(folder, target):
    """The answers of a real engine a setting, by setting."""
    tiny_draft(folder / "draft", target, layer_ids=LAYER_IDS)
    jobs = [
        Job(folder / "target", folder / "draft", setting, PROMPTS, states=setting == STATES_OF) for setting in SETTINGS
    ]
    return dict(zip(SETTINGS, run_jobs(jobs, folder), strict=True))


@pytest.fixture(scope="module")
def expected(target):
    return [greedy(target, prompt, Job.max_new_tokens) for prompt in PROMPTS]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_greedy_tokens_equal_hugging_face(served, expected, setting):
    assert [answer["output_ids"] for answer in served[setting]] == expected


@pytest.mark.parametrize("setting", SETTINGS[1:], ids=str)
def test_drafts_are_accepted_at_every_depth_and_refused(served, setting):
    """Else the equality of tokens would say little about verification."""
    accepted = Counter()
    for answer in served[setting]:
        accepted.update(dict(enumerate(answer["meta_info"]["spec_correct_drafts_histogram"])))
    assert all(accepted[depth] for depth in range(setting[0] + 1)), accepted


def test_captured_states_equal_hugging_face(served, target):
    for prompt, answer in zip(PROMPTS, served[STATES_OF], strict=True):
        first, *rest = answer["meta_info"]["hidden_states"]
        found = torch.cat([torch.tensor(first), torch.tensor(rest)])  # [T, 3 * H]
        ids = torch.tensor([[*prompt, *answer["output_ids"][:-1]]])
        with torch.no_grad():
            states = target(ids, output_hidden_states=True).hidden_states
        wanted = torch.cat([states[k][0] for k in BOUNDARIES], -1)
        assert found.shape == wanted.shape
        assert (found - wanted).norm() / wanted.norm() < 1e-5
