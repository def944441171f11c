"""How properties are tried: the same examples on every machine, others where somebody looks for new ones."""

import os
import signal

from hypothesis import settings

# Started in a shell's background, tests and all that they start would ignore Ctrl-C, which some of them try.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A run of CI must not depend on luck. To search on: HYPOTHESIS_PROFILE=search make test
settings.register_profile("repeatable", derandomize=True, print_blob=True)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
