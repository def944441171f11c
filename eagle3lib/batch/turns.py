"""Who may use the machine: notebooks share it, but one that measures speed has it to itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Any number at once, or one alone. A waiting one that needs to be alone goes before newcomers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = self._waiting = 0
        self._alone = False

    @contextmanager
    def take(self, alone: bool) -> Iterator[None]:
        with self._changed:
            if alone:
                self._waiting += 1
                self._changed.wait_for(lambda: not self._alone and not self._sharing)
                self._waiting -= 1
                self._alone = True
            else:
                self._changed.wait_for(lambda: not self._alone and not self._waiting)
                self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                if alone:
                    self._alone = False
                else:
                    self._sharing -= 1
                self._changed.notify_all()
