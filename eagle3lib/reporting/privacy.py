"""Home folders and secrets masked in anything that a record or a page shows.

Names decide first: the value of ``api_key``, ``--hf-token`` or ``WANDB_API_KEY`` is a secret whatever it
looks like, while ``max_total_tokens``, ``num_draft_tokens``, ``pad_token`` or ``tokenizer_path`` never is.
Then shapes: tokens that well-known services issue, authorization headers, passwords in URLs, private keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

MASK = "***"

#: A name with one of these words is secret, whatever surrounds it.
_SECRET_WORDS = {
    "password", "passwd", "passphrase", "passcode", "secret", "secrets", "credential", "credentials",
    "authorization", "apikey", "apikeys", "authkey", "cookie", "bearer",
}  # fmt: skip
#: ``... key`` is secret after one of these words; other keys (``key``, ``cache_key``) are not.
_KEY_OWNERS = {
    "access", "account", "admin", "anthropic", "api", "auth", "azure", "deepseek", "encryption", "google", "groq",
    "hf", "huggingface", "license", "mistral", "ngc", "nvidia", "openai", "openrouter", "private", "service",
    "signing", "ssh", "wandb",
}  # fmt: skip
#: An environment variable's ``..._KEY`` is secret whoever owns it, but for these.
_OPEN_KEYS = {"cache", "foreign", "partition", "primary", "public", "routing", "sort"}
#: ``... token`` is secret after one of these words; ``pad_token``, ``draft_token`` and the like are not.
_TOKEN_OWNERS = {
    "access", "api", "auth", "bearer", "csrf", "face", "gh", "github", "gitlab", "hf", "hub", "huggingface",
    "jupyter", "jwt", "modelscope", "oauth", "personal", "refresh", "security", "session", "slack", "wandb",
    "xsrf",
}  # fmt: skip
#: What stands where a secret would, and tells only whether one was set.
_UNSET = {"", "none", "null", "true", "false", MASK}

_QUOTE = r"""(?:\\*(?:["']|&quot;|&\#39;|&\#34;|&\#x27;))"""
#: Between a flag and its value: white space, also as JSON or repr writes it, and a line's continuation.
_GAP = r"(?:\s|\\+[nrt]|\\+(?=\s))"
_TAGS = r"(?:(?:\s*</?[a-z][^<>]*>)+)"
_NAME = re.compile(r"(?<![\w-])-{0,2}[A-Za-z_](?:[\w.-]*[\w-])?")  # a full stop ends a sentence, not a name
_VALUE = re.compile(
    rf"""(?P<between>
        {_QUOTE}?\]?\s*:\s*[A-Za-z][\w\[\].|\ ]*=\s*      # name: type = value
      | {_QUOTE}?\]?{_TAGS}?\s*[=:]{_TAGS}?{_GAP}*        # name=value, "name": value, ["name"] = value
      | {_QUOTE}\s*,\s*                                   # "name", "value"
      | {_TAGS}\s*                                        # <td>name</td><td>value
      | (?P<gap>{_GAP}+) )
    (?P<value>
        "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
      | (?P<quote>{_QUOTE})[^\n]*?(?P=quote)
      | (?P<open>{_QUOTE})(?:(?!\\+[nr"'])[^\n"'<>])*     # never closed
      | (?:[^\s"'<>&\\]|\\++(?![nrt"'\s&]))+?(?=[,;:)\]}}]*(?:[\s"'<>&]|\\+[nrt"'\s&]|$)) )""",
    re.VERBOSE,
)
#: vLLM's ``--api-key`` takes several: the words up to the next flag, where they end like a command and not like prose.
_SEVERAL = re.compile(r"--api[-_]keys?")
_WORD = r"""((?:[ \t]|\\+\r?\n|\\{2,}[nrt])+)('[^'\n]*'|"[^"\n]*"|(?!-)[^\s"'<>&|;\\]+(?<![.,;:]))"""
_WORDS = re.compile(rf"""(?:{_WORD})+(?=\s*(?:$|[\n"'<>&|;\\])|\s+-)""")
_HEADER = re.compile(r"""(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\\*["']?\s*:\s*\\*["']?)[^"'\n<\\]+""")
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)(?=[^\s\"'<>]*\d)[\w.~+/-]{8,}=*")
_ISSUED = re.compile(
    r"\b(?:hf_(?=[A-Za-z]*\d|[a-z]*[A-Z])[A-Za-z0-9]{10,}|sk-(?=[\w-]*\d)[\w-]{12,}|gh[pousr]_[A-Za-z0-9]{16,}"
    r"|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|nvapi-[\w-]{16,}"
    r"|AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
)
_CURL_USER = re.compile(
    rf"\b(curl\b(?:[^\n|;]|\\\r?\n){{0,2000}}?\s(?:-[A-Za-z]*[uU]|--user|--proxy-user)(?:{_GAP}+|=)?{_QUOTE}?)"
    r"[^\s:\"'<>&\\-][^\s:\"'<>&\\]*:[^\s\"'<>&\\]+"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)
_URL_USER = re.compile(
    r"\b([a-z][a-z0-9+.-]*://)(?:[^\s/@:\"'<>]{0,200}:[^\s@\"'<>]{0,200}|[^\s/@:\"'<>]{20,200})@(?=[\w\[])"
)
_HOME = re.compile(
    r"(?<![\w.~-])(?:/home/[^/\s\"'<>&|:;,)\]]+|/Users/(?!Shared\b)[^/\s\"'<>&|:;,)\]]+|/root(?![\w.-]))"
    r"|\b[A-Za-z]:\\{1,2}Users\\{1,2}[^\\\s\"'<>&|:;,)\]]+"
)


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a key, flag or environment variable of this name holds a secret."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    if not _SECRET_WORDS.isdisjoint(words) or words == ["token"]:
        return True
    if any(owner in _KEY_OWNERS and word in ("key", "keys") for owner, word in zip(words, words[1:], strict=False)):
        return True
    *owners, last = words or [""]
    if name.isupper() and (last == "pass" or (last == "key" and owners and _OPEN_KEYS.isdisjoint(owners))):
        return True
    return bool(owners) and (last == "pwd" or (last == "token" and owners[-1] in _TOKEN_OWNERS))


def mask(value: Any) -> Any:
    """``value`` with home folders as ``~`` and secrets as ``***``, at any depth. Idempotent.

    Mappings, lists, tuples and strings are rebuilt; anything else is returned as it is.
    """
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        subject = next((value[key] for key in ("name", "key", "flag") if isinstance(value.get(key), str)), "")
        return {
            mask_text(key) if isinstance(key, str) else key: MASK
            if _holds_secret(str(key), item) or (key == "value" and _holds_secret(subject, item))
            else mask(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        items = [
            MASK if _follows(name, item, len(value)) else mask(item)
            for name, item in zip(_owners(value), value, strict=True)
        ]
        return items if isinstance(value, list) else tuple(items)
    return value


def mask_text(text: str) -> str:
    """One string masked: command lines, environment listings, JSON, log lines, tracebacks, HTML."""
    for _ in range(4):  # a mask may uncover another pattern; settled after one round but for odd text
        before, text = text, _mask_once(text)
        if text == before:
            break
    return text


def _mask_once(text: str) -> str:
    text = _PRIVATE_KEY.sub(MASK, _mask_home(text))
    text = _URL_USER.sub(rf"\1{MASK}@", text)
    text = _CURL_USER.sub(rf"\1{MASK}", text)
    text = _HEADER.sub(rf"\1\2{MASK}", text)
    text = _mask_named(text)
    text = _BEARER.sub(rf"\1\2{MASK}", text)
    return _ISSUED.sub(MASK, text)


def _mask_home(text: str) -> str:
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)
    return _HOME.sub("~", text)


def _mask_named(text: str) -> str:
    """The values that follow secret names. Scanned name by name, so that no value hides the next name."""
    parts, end = [], 0
    for name in _NAME.finditer(text):
        key = _without_escape(text, name)
        if name.start() < end or not is_secret_name(key):
            continue
        pair = _VALUE.match(text, name.end())
        if pair is None:
            continue
        between, value = pair["between"], pair["value"]
        quote = pair["open"] or pair["quote"] or (value[0] if value[0] in "\"'" else "")
        closing = "" if pair["open"] else quote
        inner = value[len(quote) : len(value) - len(closing)]
        if pair["gap"]:  # the argument of a flag, or a column of a printed table
            flag = key.startswith("-") and not inner.startswith("--")
            column = len(between) > 1 and "\n" not in between
            if not (flag or column):
                continue
        if _holds_secret(key, inner):
            parts += [text[end : pair.start("value")], quote, MASK, closing]
            end = pair.end()
            if pair["gap"] and _SEVERAL.fullmatch(key) and (more := _WORDS.match(text, end)):
                parts.append(re.sub(_WORD, rf"\1{MASK}", more[0]))
                end = more.end()
    return "".join([*parts, text[end:]])


def _without_escape(text: str, name: re.Match[str]) -> str:
    r"""The name without the ``n`` of a line's end that JSON or repr wrote as ``\n`` before it."""
    escaped = name[0][0] in "nrt" and text[name.start() - 1 : name.start()] == "\\" and is_secret_name(name[0][1:])
    return name[0][1:] if escaped else name[0]


def _holds_secret(name: str, value: object) -> bool:
    """A lone ``token`` is also what a table of vocabulary calls its column: there the value decides."""
    if not is_secret_name(name) or value is None or isinstance(value, bool) or str(value).lower() in _UNSET:
        return False
    if name.lower() == "token":
        return isinstance(value, str) and bool(re.fullmatch(r"(?=\S*\d)[\w.+/~-]{8,}=*", value))
    return True


def _owners(items: Sequence[object]) -> Iterator[object]:
    """Before each item what it may be the value of: the item before it, or the flag that takes several."""
    owner: object = None
    for item in items:
        yield owner
        if not (isinstance(owner, str) and _SEVERAL.fullmatch(owner)) or str(item).startswith("-"):
            owner = item


def _follows(name: object, item: object, length: int) -> bool:
    """``item`` is the value of a flag in an argument list, or of a name in a pair."""
    if not isinstance(name, str) or not isinstance(item, (str, int, float)):
        return False
    paired = name.startswith("-") or length == 2
    return paired and not str(item).startswith("--") and _holds_secret(name, item)
