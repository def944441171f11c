"""What engines say they accepted, in every spelling people have, as counts per request.

A report keeps what its source determines and nothing else: zero and absent counters mean "not measured".
``eagle3lib.measuring.acceptance`` turns it into rates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading import engine_text
from eagle3lib.reading.run_flags import BESIDE, flags_beside, run_flags

#: What a source's numbers mean, by the form it has them in. Every accept length here counts the bonus token.
DEFINITIONS = {
    "histogram": "drafts accepted in each verify step, plus one bonus token",
    "counters": "accepted drafts / verify steps, plus one bonus token",
    "completion": "completion tokens / verify steps: with the token of the prefill, without what a stop cut",
    "window": "mean over the engine's log windows, each weighted by its running requests",
    "average": "the engine's running average: weights and number of steps not given",
    "alpha": "right / tried at each position, tried only after all earlier ones were right",
    "unmeasured": "nothing was measured",
}
#: SGLang 0.5.23 first, then 0.5.9.
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram", "histogram")
ACCEPTED = ("spec_num_correct_drafts", "spec_accept_token_num")
PROPOSED = ("spec_num_proposed_drafts", "spec_draft_token_num")
LENGTH = ("spec_accept_length", "avg_spec_accept_length", "accept_length", "acceptance_length", "acc_length")
RATE = ("spec_accept_rate", "accept_rate", "acceptance_rate")


@dataclass(frozen=True)
class RequestReport:
    """One request (or one log window, one rank, one counter) of a report; ``None`` where it does not say."""

    histogram: tuple[int, ...] | None = None  #: [j] = verify steps with j accepted drafts
    verify_steps: int | None = None
    accepted: int | None = None  #: drafts, without bonus tokens
    proposed: int | None = None  #: ``verify_steps * (num_draft_tokens - 1)`` in SGLang
    completion_tokens: int | None = None
    steps: tuple[int, ...] | None = None  #: accepted drafts of each verify step, in order
    tried: tuple[tuple[int, int], ...] | None = None  #: (right, tried) at each position
    stated: Mapping[str, float] = field(default_factory=dict)  #: ``accept_length``, ``accept_rate`` as written there
    weight: float = 1.0  #: of a log window
    category: str | None = None
    prompt_tokens: int | None = None

    @property
    def form(self) -> str:
        """The best of ``DEFINITIONS`` that this request allows; counts that cannot be allow none."""
        counts = [*(self.histogram or ()), self.verify_steps, self.accepted, self.completion_tokens]
        if any(count is not None and count < 0 for count in counts):
            return "unmeasured"
        if self.tried and all(0 <= right <= tried for right, tried in self.tried):
            return "alpha"
        if self.histogram and sum(self.histogram):
            return "histogram"
        if self.verify_steps:
            if self.accepted is not None:
                return "counters"
            if self.completion_tokens:
                return "completion"
        return "average" if self.stated.get("accept_length") else "unmeasured"

    @property
    def counted(self) -> tuple[int, int] | None:
        """Tokens given, bonus tokens among them, and verify steps; ``None`` where there are no counts of them."""
        match self.form:
            case "histogram":
                return sum((1 + drafts) * count for drafts, count in enumerate(self.histogram)), sum(self.histogram)
            case "counters":
                return self.verify_steps + self.accepted, self.verify_steps
            case "completion":
                return self.completion_tokens, self.verify_steps
        return None


@dataclass(frozen=True)
class EngineReport:
    """One source: a file, named after it."""

    source: str
    form: str
    requests: tuple[RequestReport, ...] = field(repr=False)
    flags: Mapping[str, Any] = field(default_factory=dict)  #: of the server, where this file or one beside it says

    @property
    def definition(self) -> str:
        return DEFINITIONS[self.form]

    @property
    def measured(self) -> tuple[RequestReport, ...]:
        """The requests that hold the report's form; the others say less or nothing."""
        if self.form == "window":
            return tuple(request for request in self.requests if request.form != "unmeasured")
        return tuple(request for request in self.requests if request.form == self.form)


def read_engine_reports(path: str | Path) -> list[EngineReport]:
    """Every source at ``path``: a file, or each file of a folder.

    Raises:
        InputError: nothing there, or a file that is none of the known forms.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    else:
        files = [path]
    if not files or not all(file.is_file() for file in files):
        raise InputError("engine_reports", f"nothing at {path.name}", "a file or folder of engine reports")
    flags = flags_beside(files)
    reports = []
    for file in files:
        if not (file.name.endswith(BESIDE) and len(files) > 1):
            found = parse_engine_report(file.read_text(errors="replace"), file.name)
            reports.append(replace(found, flags=flags.get(file) or found.flags))
    return reports


def parse_engine_report(text: str, source: str) -> EngineReport:
    """One source from its text: JSON, JSONL, Prometheus text or a server log."""
    content = _json(text)
    if content is not None:
        return replace(report(source, _from_json(content, f"engine report {source}")), flags=run_flags(text))
    for parse in (engine_text.prometheus, engine_text.vllm_log, engine_text.sglang_log):
        if entries := parse(text):
            form = "window" if parse is engine_text.sglang_log else None
            found = report(source, [RequestReport(**entry) for entry in entries], form)
            return replace(found, flags=run_flags(text))
    expected = "SGLang meta_info or log, Prometheus text, vLLM metrics or a list of accepted counts"
    raise InputError(f"engine report {source}", "no acceptance counts", expected)


def report(source: str, requests: Sequence[RequestReport], form: str | None = None) -> EngineReport:
    """A report of ``requests`` in the best form that any of them has, or in ``form`` if any has one."""
    found = [name for name in DEFINITIONS if any(request.form == name for request in requests)]
    best = found[0] if found else "unmeasured"
    return EngineReport(source, form if form and best != "unmeasured" else best, tuple(requests))


def _json(text: str) -> Any:
    """The JSON document, or the list of a JSONL file's; ``None`` when the text is neither."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()] or None
    except json.JSONDecodeError:
        return None


def _from_json(content: Any, where: str) -> list[RequestReport]:
    if isinstance(content, list):
        if content and all(isinstance(item, int) and not isinstance(item, bool) for item in content):
            return [_from_steps(content)]
        return [request for item in content for request in _from_json(item, where)]
    if isinstance(content, bool):
        cure = "give the drafts accepted before the first miss: what agrees after a miss was never accepted."
        raise InputError(where, "a mask of tokens that agree", "counts of accepted drafts", cure)
    if not isinstance(content, Mapping):
        cure = "a mean or a list of fractions has no single meaning: give counts."
        raise InputError(where, f"{content!r}", "objects, or drafts accepted in each verify step", cure)
    for key, read in _NESTED.items():
        if content.get(key) is not None:
            return read(content, where)
    return [_from_counters(content, where)]


def _from_steps(steps: Sequence[int]) -> RequestReport:
    return RequestReport(_count(steps), steps=tuple(steps), verify_steps=len(steps), accepted=sum(steps))


def _count(steps: Sequence[int]) -> tuple[int, ...]:
    """The histogram of accepted drafts per step; a negative count is left to be called impossible."""
    return tuple(steps.count(accepted) for accepted in range(max(steps) + 1))


def _from_response(content: Mapping[str, Any], where: str) -> list[RequestReport]:
    """A whole response of ``/generate``, or a line that ``save_responses`` wrote."""
    request = _from_counters(content["meta_info"], where)
    steps = content.get("accepted_per_step")
    return [
        replace(
            request,
            steps=None if steps is None else tuple(steps),
            category=content.get("category"),
            prompt_tokens=content.get("prompt_tokens", request.prompt_tokens),
        )
    ]


def _from_openai(content: Mapping[str, Any], where: str) -> list[RequestReport]:
    """A chat completion with ``return_spec_tokens_details``: the details lie in ``sglext`` or in a choice."""
    usage = content.get("usage") or {}
    tokens = {key: usage[key] for key in ("completion_tokens", "prompt_tokens") if key in usage}
    details = list(_find(content, "spec_tokens_details"))
    if len(details) != 1:  # several choices share one count of completion tokens
        tokens = {}
    return [_from_counters({**detail, **tokens}, where) for detail in details or [{}]]


def _find(content: Any, key: str) -> Iterator[Mapping[str, Any]]:
    children = content.values() if isinstance(content, Mapping) else content if isinstance(content, list) else ()
    if isinstance(content, Mapping) and key in content:
        found = content[key]
        yield from (found if isinstance(found, list) else [found] if found else [])
        return
    for child in children:
        yield from _find(child, key)


def _from_alpha(content: Mapping[str, Any], where: str) -> list[RequestReport]:
    """EAGLE's alpha scripts: ``alpha`` right of ``alpha_num`` tried, by position."""
    right, tried = _integers(content, "alpha", where), _integers(content, "alpha_num", where)
    return [RequestReport(tried=tuple(zip(right, tried, strict=False)))]


def _from_vllm(content: Mapping[str, Any], where: str) -> list[RequestReport]:
    """vLLM's counters as an object (``SpecDecodingStats``, ``v1/spec_decode/metrics.py``)."""
    per_position = _integers(content, "num_accepted_tokens_per_pos", where)
    steps = _integer(content, ("num_drafts",), where)
    return [RequestReport(**engine_text.from_positions(steps or 0, per_position))]


def _from_vllm_bench(content: Mapping[str, Any], where: str) -> list[RequestReport]:
    """``vllm bench serve`` (``benchmarks/serve.py``): counts of the run, and shares of its steps by position."""
    steps, accepted, drafted = (
        _integer(content, (f"spec_decode_{name}",), where) for name in ("num_drafts", "accepted_tokens", "draft_tokens")
    )
    shares = content.get("spec_decode_per_position_acceptance_rates") or []
    counts = [round(_number({"share": share}, ("share",), where) * (steps or 0)) for share in shares]
    exact = sum(counts) == accepted and bool(counts)
    positions = engine_text.from_positions(steps or 0, counts) if exact else {"verify_steps": steps}
    return [RequestReport(**{**positions, "accepted": accepted, "proposed": drafted})]


_NESTED: dict[str, Callable[[Mapping[str, Any], str], list[RequestReport]]] = {
    "meta_info": _from_response,
    "choices": _from_openai,
    "internal_states": lambda content, where: _from_json(list(content["internal_states"]), where),
    "alpha_num": _from_alpha,
    "num_accepted_tokens_per_pos": _from_vllm,
    "spec_decode_num_drafts": _from_vllm_bench,
}


def _from_counters(content: Mapping[str, Any], where: str) -> RequestReport:
    """SGLang's ``meta_info``, 0.5.23 or older, or any object with some of its keys."""
    histogram = next((_integers(content, key, where) for key in HISTOGRAM if content.get(key)), ())
    stated = {
        name: value
        for name, keys in (("accept_length", LENGTH), ("accept_rate", RATE))
        if (value := _number(content, keys, where)) is not None
    }
    if content.get("bonus") is False and "accept_length" in stated:  # said to leave the target's own token out
        stated["accept_length"] += 1
    return RequestReport(
        histogram=histogram or None,
        verify_steps=_integer(content, ("spec_verify_ct", "verify_ct"), where),
        accepted=_integer(content, ACCEPTED, where),
        proposed=_integer(content, PROPOSED, where),
        completion_tokens=_integer(content, ("completion_tokens",), where),
        stated=stated,
        prompt_tokens=_integer(content, ("prompt_tokens",), where),
        category=content.get("category"),
    )


def _number(content: Mapping[str, Any], keys: Sequence[str], where: str) -> float | None:
    for key in keys:
        value = content.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InputError(f"{where} {key}", f"{value!r}", "a finite number")
        return float(value)
    return None


def _integer(content: Mapping[str, Any], keys: Sequence[str], where: str) -> int | None:
    value = _number(content, keys, where)
    if value is not None and value != int(value):
        raise InputError(f"{where} {' or '.join(keys)}", value, "a whole number")
    return None if value is None else int(value)


def _integers(content: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    values = content.get(key)
    if not isinstance(values, list):
        raise InputError(f"{where} {key}", f"{values!r}", "a list of counts")
    return tuple(_integer({key: value}, (key,), where) or 0 for value in values)
