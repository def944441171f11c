"""The stand-in's operators equal SGLang's own Triton kernels, run by Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.engine_jobs import ENVIRONMENT

pytest.importorskip("sglang")
pytestmark = pytest.mark.engine

CASES = {
    "build_tree": 200,
    "verify_tree": 200,
    "assign_req_to_token_pool": 20,
    "assign_extend_cache_locs": 20,
    "assign_draft_cache_locs_contiguous": 20,
    "fill_bonus_tokens": 20,
    "fill_accept_out_cache_loc": 20,
    "rotate_input_ids": 20,
    "build_draft_decode_metadata": 20,
}


@pytest.fixture(scope="module")
def outcomes():
    """In a process of its own: the interpreter and SGLang's CPU path are chosen when they are imported."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_twins.py"))],
        env=os.environ | ENVIRONMENT | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("operator", CASES)
def test_operator_equals_its_triton_twin(outcomes, operator):
    assert outcomes[operator] == {"equal": CASES[operator]}
