"""The one exception this library raises for bad input."""

from __future__ import annotations


class InputError(ValueError):
    """A file, field, flag or parameter that cannot be used.

    Every instance names where the trouble is, what was found, what was expected and how to cure it,
    so that one line is enough to go and fix it.
    """

    def __init__(self, where: object, found: object, expected: str, cure: str = "") -> None:
        self.where, self.found, self.expected, self.cure = str(where), str(found), expected, cure
        super().__init__(str(self))

    def __str__(self) -> str:
        cure = f" To cure it: {self.cure}" if self.cure else ""
        return f"{self.where}: found {self.found}, expected {self.expected}.{cure}"

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback: the sentence says where to look, library frames do not."""
        return [f"{type(self).__name__}: {self}"]


class UnsafeFile(InputError):
    """A file that could do harm if it were read: a pickle that is not plain tensors, a path that leaves
    its folder. Reported as the finding ``weights.unsafe_file``."""
