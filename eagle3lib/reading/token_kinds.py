"""What kind of text a token is, from the target's own ``tokenizer.json``.

Only that file is read, with the ``tokenizers`` library: no code that a model folder brings along is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from eagle3lib.errors import InputError

#: The first pattern that a token's text matches names its kind.
_KINDS = (
    ("special token", re.compile(r"<[|\w/-]+>|\[[A-Z]+\]")),
    ("line break or space", re.compile(r"\s*")),
    ("digits", re.compile(r"\s*[-+]?[\d.,]*\d[\d.,]*\s*")),
    ("punctuation", re.compile(r"\s*[.,;:!?'\"“”‘’…–—-]+\s*")),
    ("code or symbol", re.compile(r".*[^\w\s'’.,-].*|.*_.*|\s*[a-z]+[A-Z]\w*", re.S)),
)
NAME, WORD = "capitalised word or name", "other word"
#: Of a token that the draft's head has no row for.
OUTSIDE = "outside the draft vocabulary"
INSIDE = "in the draft vocabulary"


def kind_of(text: str) -> str:
    """The kind of a token with this text."""
    usual = NAME if text.lstrip()[:1].isupper() else WORD
    return next((name for name, pattern in _KINDS if pattern.fullmatch(text)), usual)


def decoder(target: str | Path) -> Callable[[Sequence[int]], str]:
    """The text of token ids under the tokenizer of the model folder ``target``.

    Raises:
        InputError: it has no ``tokenizer.json``, or one that cannot be read.
    """
    from tokenizers import Tokenizer

    file = Path(target) / "tokenizer.json"
    if not file.is_file():
        cure = "tokenizers that need code from the model's folder are not run"
        raise InputError("target", f"no {file.name}", "a tokenizer.json beside its config", cure)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"target {file.name}", str(error)[:120], "a tokenizer that `tokenizers` reads") from None
    return lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=False)
