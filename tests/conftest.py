"""How properties are tried: the same examples on every machine, others where somebody looks for new ones."""

import os

from hypothesis import settings

# A run of CI must not depend on luck. To search on: HYPOTHESIS_PROFILE=search make test
settings.register_profile("repeatable", derandomize=True, print_blob=True)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
