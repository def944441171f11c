"""Requests to send: messages, plain text or token ids, one a line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.fields import number
from eagle3lib.reading.files import parse_object, read_text

FORMS = ("messages", "text", "input_ids")


@dataclass(frozen=True)
class Prompt:
    """One request, as the token ids that are sent."""

    input_ids: tuple[int, ...]
    category: str | None = None
    max_new_tokens: int | None = None


def read_prompts(path: str | Path, target: str | Path | None = None) -> list[Prompt]:
    """The requests of a JSONL file.

    Args:
        target: model folder whose tokenizer and chat template are used; not needed for ``input_ids``.

    Raises:
        InputError: the file is missing or empty, a line is no request, or a tokenizer is needed and missing.
    """
    path = Path(path)
    if not path.is_file():
        found = f"no file {path.name}" if path.name else "nothing"
        raise InputError("prompts", found, "a JSONL file, one request a line")
    lines = [(number, line) for number, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
    if not lines:
        raise InputError(path.name, "no request", "one request a line")
    return [_parse(f"{path.name} line {number}", line, target) for number, line in lines]


def _parse(where: str, line: str, target: str | Path | None) -> Prompt:
    record = parse_object(line, where)
    forms = [form for form in FORMS if form in record]
    if len(forms) != 1:
        raise InputError(where, " and ".join(forms) or "no request", f"exactly one of {', '.join(FORMS)}")
    form = forms[0]
    ids = record[form] if form == "input_ids" else _encode(where, form, record[form], target)
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise InputError(f"{where} {form}", f"{ids!r}"[:80], "a non-empty list of token ids")
    expected = "a positive whole number"
    limit = number(record, "max_new_tokens", where, expected, lambda value: value > 0, whole=True)
    return Prompt(tuple(ids), record.get("category"), limit)


def _encode(where: str, form: str, value: Any, target: str | Path | None) -> list[int]:
    if target is None:
        raise InputError(f"{where} {form}", "no target", "input_ids, or a target whose tokenizer encodes it")
    tokenizer = _tokenizer(str(target))
    if form == "text" and isinstance(value, str):
        return list(tokenizer(value).input_ids)
    if form == "messages" and tokenizer.chat_template is None:
        cure = "give text with the template applied, or input_ids."
        raise InputError(where, "messages for a target without a chat template", "a chat template", cure)
    turns = value if isinstance(value, list) else []
    if not turns or not all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in turns):
        raise InputError(f"{where} {form}", f"{value!r}"[:80], "text, or a list of roles with contents")
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


@cache
def _tokenizer(target: str) -> Any:
    from transformers import AutoTokenizer  # slow to import, and not needed for token ids

    try:
        return AutoTokenizer.from_pretrained(target)
    except (OSError, ValueError) as error:
        raise InputError(f"target {Path(target).name}", str(error).split("\n")[0], "a tokenizer") from error
