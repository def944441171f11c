"""A notebook that measures speed shares the machine with nobody."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from eagle3lib.batch.turns import Turns


def test_one_alone_and_never_beside_others() -> None:
    turns, lock, inside, seen = Turns(), threading.Lock(), [], []

    def work(alone: bool) -> None:
        with turns.take(alone):
            with lock:
                inside.append(alone)
                seen.append(tuple(inside))
            time.sleep(0.01)
            with lock:
                inside.remove(alone)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, [False, False, True, False, True, False, False, True] * 3))
    assert len(seen) == 24 and any(len(at_once) > 1 for at_once in seen)
    assert all(len(at_once) == 1 for at_once in seen if True in at_once)
