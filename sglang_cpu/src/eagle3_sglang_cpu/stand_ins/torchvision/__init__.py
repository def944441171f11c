"""Import-only stand-in for ``torchvision``.

SGLang and transformers import a few of its names for image models when they start. No image is ever processed
here: calling anything raises. The real package is bound to one build of torch, which is seldom a CPU's.
"""

from typing import Any, NoReturn

#: transformers compares it; recent enough for no workaround.
__version__ = "0.28.0"


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """What every function of this package does."""
    raise NotImplementedError("torchvision is a stand-in here, to be imported only; images need the real one")
