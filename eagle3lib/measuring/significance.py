"""When a difference between two rates is told from none, so that healthy data raise no alarm.

A notebook looks at many differences at once: a 95 % interval apart would cry wolf once in twenty. A finding
needs the interval at 99.9 %, shared among the comparisons made at once (Bonferroni).
"""

from __future__ import annotations

from scipy import stats

from eagle3lib.measuring.rates import Difference

#: Chance of a false alarm in one question put to healthy data.
LEVEL = 0.001


def is_significant(found: Difference, requests: int, comparisons: int = 1, level: float = LEVEL) -> bool:
    """Whether ``found`` differs from 0 at ``level``: its 95 % interval, widened as Student's t widens."""
    if found.value is None or found.ci is None or requests < 2:
        return False
    asked = stats.t.ppf(1 - level / (2 * comparisons), requests - 1)
    widened = float(asked / stats.t.ppf(0.975, requests - 1))
    low, high = (found.value + (end - found.value) * widened for end in found.ci)
    return not low <= 0 <= high
