"""A server's command line as people paste it, or its /server_info, as one frozen object."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.files import parse_object

#: Other spellings that SGLang's own parser takes (srt/arg_groups/fields/*.py ``aliases``).
_ALIASES = {
    "speculative_draft_model": "speculative_draft_model_path",
    "model": "model_path",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
}
#: Every speculative field of 0.5.9 and 0.5.23 (srt/server_args.py; srt/arg_groups/fields/spec.py), without
#: those of n-gram, DFlash and DSpark drafting.
SPECULATIVE = (
    "speculative_algorithm", "speculative_draft_model_path", "speculative_draft_model_revision",
    "speculative_draft_load_format", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "speculative_accept_threshold_single", "speculative_accept_threshold_acc",
    "speculative_use_rejection_sampling", "speculative_use_block_verification", "speculative_token_map",
    "speculative_attention_mode", "speculative_draft_attention_backend", "speculative_dsa_topk_backend",
    "speculative_draft_kv_cache_dtype", "speculative_draft_window_size", "speculative_draft_sink_size",
    "speculative_moe_runner_backend", "speculative_moe_a2a_backend", "speculative_enable_w4a4_mxfp4_megamoe",
    "speculative_draft_model_quantization", "speculative_adaptive", "speculative_adaptive_config",
)  # fmt: skip
#: The fields of a setting ``[num_steps, topk, num_draft_tokens]``, in its order.
SETTING = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.S)
_FLAG = re.compile(r"--[A-Za-z_]")
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?$|-?\.\d+$")
_OPERATOR = re.compile(r"[|;&]+|\d?>{1,2}&?[\w./-]*|<[\w./-]*")
#: Continued lines and whole-line comments, outside of quotes.
_CONTINUED = re.compile(r"""(?P<kept>'[^']*'|"(?:\\.|[^"\\])*")|\\\r?\n|^[ \t]*\#[^\n]*|(?P<other>\\.)""", re.M | re.S)
MAX_TEXT = 1 << 20


@dataclass(frozen=True)
class Part:
    """One piece of the line in its place: an environment setting, a flag with its values, or a word."""

    name: str  # "" for a word
    values: tuple[str, ...]
    spelled: str = ""  # a flag as written, with its dashes; "" for an environment setting
    joined: bool = False  # written with "="

    def __str__(self) -> str:
        """As a shell reads it."""
        if not self.name and _OPERATOR.fullmatch(self.values[0]):
            return self.values[0]
        first = self.spelled or self.name
        values = [shlex.quote(value) for value in self.values]
        if first and values and (self.joined or not self.spelled):
            return f"{first}={values[0]}"
        return " ".join([first, *values] if first else values)


@dataclass(frozen=True)
class Launch:
    """``env`` and ``flags`` by name (dashes as underscores); a switch without a value is True.

    ``source`` is ``"line"``, ``"server_info"`` (values after the server's own changes) or ``"none"``;
    ``program`` is ``sglang``, ``vllm`` or "". ``parts`` is the line itself, in order.
    """

    env: Mapping[str, str]
    flags: Mapping[str, Any]
    source: str
    program: str
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Launch:
        """Read a pasted line, bare flags, or the JSON text of ``/server_info``; "" gives an empty Launch."""
        if len(text) > MAX_TEXT:
            raise InputError("launch", f"{len(text):,} characters", f"at most {MAX_TEXT:,}")
        if not text.strip():
            return cls(MappingProxyType({}), MappingProxyType({}), "none", "")
        if text.lstrip().startswith("{"):
            return _server_info(parse_object(text, "launch (/server_info)"))
        return _line(text)

    def __bool__(self) -> bool:
        return self.source != "none"

    def text(self, name: str) -> str | None:
        """A flag's value as text; None when it is not given."""
        value = self.flags.get(name)
        return None if value is None or value is True else str(value)

    def integer(self, name: str) -> int | None:
        """A flag's integer value; :class:`InputError` when it is none."""
        return self.number(name, int, "an integer")

    def number(self, name: str, kind: type = float, expected: str = "a finite number") -> Any:
        """A flag's value as a finite number."""
        value = self.flags.get(name)
        if value is None:
            return None
        try:
            if isinstance(value, (bool, list)) or not math.isfinite(number := kind(value)):
                raise ValueError
            return number
        except (ValueError, OverflowError):
            found = "no value" if value is True else repr(value)[:80]
            raise InputError(_where(name), found, expected) from None

    def switch(self, name: str) -> bool:
        """True when a switch is given (and not given as false)."""
        value = self.flags.get(name)
        return value is not None and str(value).lower() not in ("false", "0", "none", "")

    def json(self, name: str) -> dict[str, Any]:
        """A flag's JSON object; empty when it is not given."""
        if isinstance(self.flags.get(name), dict):
            return self.flags[name]
        text = self.text(name)
        return parse_object(text, _where(name)) if text else {}

    def set_in_env(self, name: str) -> bool:
        """True when an environment switch is on."""
        return self.env.get(name, "").lower() in ("1", "true", "yes", "on")

    def render(self, changes: Mapping[str, Any]) -> str:
        """The line with some flags changed: ``{"--flag": value}``; None removes one, True is a switch.

        Everything else stays as it was, quoted again where needed.
        """
        new: dict[str, Part | None] = {}
        for flag, value in changes.items():
            text = value if isinstance(value, str) else json.dumps(value)
            part = Part(_name(flag), () if value is True else (text,), flag)
            new[part.name] = None if value is None or value is False else part
        there = {part.name for part in self.parts if part.spelled}
        added = [part for name, part in new.items() if part and name not in there]
        out: list[Part] = []
        for part in self.parts:
            if not part.name and any(p.spelled for p in out) and _OPERATOR.fullmatch(part.values[0]):
                out, added = out + added, []  # new flags go before the shell operator that ends the command
            if not part.spelled or part.name not in new:
                out.append(part)
            elif change := new[part.name]:
                out.append(replace(change, spelled=part.spelled, joined=part.joined))
        return " ".join(map(str, out + added))


def _where(name: str) -> str:
    return f"launch: --{name.replace('_', '-')}"


def _name(flag: str) -> str:
    """The field of a flag; an unambiguous beginning is enough, as argparse takes it."""
    name = flag.lstrip("-").replace("-", "_")
    name = _ALIASES.get(name, name)
    if name in SPECULATIVE or not name.startswith("speculative_"):
        return name
    fits = [known for known in SPECULATIVE if known.startswith(name)]
    return fits[0] if len(fits) == 1 else name


def _server_info(data: Mapping[str, Any]) -> Launch:
    flags = {k: v for k, v in data.items() if v is not None and k not in ("internal_states", "env")}
    if isinstance(flags.get("server_args"), dict):
        flags |= {k: v for k, v in flags.pop("server_args").items() if v is not None}
    note = "a /server_info shows values after the server's own changes: what was requested is not known"
    return Launch(MappingProxyType({}), MappingProxyType(flags), "server_info", "sglang", (note,))


def _line(text: str) -> Launch:
    text = _CONTINUED.sub(lambda found: found["kept"] or found["other"] or " ", text)
    try:
        tokens = shlex.split(text)
    except ValueError as error:
        raise InputError("launch", f"a line the shell cannot split ({error})", "balanced quotes") from None
    parts = _parts(tokens)
    env = {p.name: p.values[0] for p in parts if p.name and not p.spelled}
    flags = {p.name: p.values[0] if len(p.values) == 1 else list(p.values) or True for p in parts if p.spelled}
    words = [p.values[0] for p in parts if not p.name]
    names = (name for name in ("vllm", "sglang") if any(re.search(rf"(^|[/.]){name}($|[./])", word) for word in words))
    program = next(names, "")
    if not (flags or env or program):
        raise InputError("launch", f"{text.strip()!r}"[:80], "a server's command line, or its flags (--name value)")
    notes = []
    if program == "vllm" or "speculative_config" in flags:
        program = "vllm"
        notes.append("a vLLM command line: its flags are not SGLang's and are not judged here")
    if "config" in flags and program != "vllm":
        notes.append(f"--config {flags['config']}: flags in that file are not seen; paste /server_info instead")
    if "serve" in words[:-1]:
        flags.setdefault("model_path", words[words.index("serve") + 1])
    return Launch(MappingProxyType(env), MappingProxyType(flags), "line", program, tuple(notes), tuple(parts))


def _parts(tokens: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    left, ended = deque(tokens), False
    while left:
        token = left.popleft()
        after_flags = any(part.spelled for part in parts)
        # after the command's own flags, a shell operator ends the command
        ended = ended or (after_flags and bool(_OPERATOR.fullmatch(token)))
        spelled, joined, value = token.partition("=")
        if _FLAG.match(token) and not ended:
            values = [value] if joined else []
            while left and not joined and _is_value(left[0]):
                values.append(left.popleft())
            parts.append(Part(_name(spelled), tuple(values), spelled, bool(joined)))
        elif _ASSIGNMENT.fullmatch(token) and not ended and not after_flags:
            parts.append(Part(spelled, (value,)))
        else:
            parts.append(Part("", (token,)))
    return parts


def _is_value(token: str) -> bool:
    return not _OPERATOR.fullmatch(token) and (not token.startswith("-") or bool(_NUMBER.match(token)))
