"""Acceptance counts in JSON: SGLang's responses and server info, chat completions, vLLM's counters, EAGLE's alpha.

As in ``engine_text``, every request (or rank, or run) becomes one mapping of ``RequestReport`` fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.engine_text import Entry, from_positions

#: SGLang 0.5.23 first, then 0.5.9.
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram", "histogram")
ACCEPTED = ("spec_num_correct_drafts", "spec_accept_token_num")
PROPOSED = ("spec_num_proposed_drafts", "spec_draft_token_num")
STEPS = ("spec_verify_ct", "verify_ct")
LENGTH = ("spec_accept_length", "avg_spec_accept_length", "accept_length", "acceptance_length", "acc_length")
RATE = ("spec_accept_rate", "accept_rate", "acceptance_rate")
#: More drafts than any engine proposes in one step, and more of anything than any run counts.
MOST_DRAFTS, MOST = 1024, 1e18


def entries(content: Any, where: str) -> list[Entry]:
    """The requests in a JSON document, or in the list of a JSONL file's.

    Raises:
        InputError: no objects and no accepted counts, or a field of another type than its name says.
    """
    if isinstance(content, list):
        if content and all(isinstance(item, int) and not isinstance(item, bool) for item in content):
            steps = _steps(content, where)
            return [{"histogram": _count(steps), "steps": steps, "verify_steps": len(steps), "accepted": sum(steps)}]
        return [entry for item in content for entry in entries(item, where)]
    if isinstance(content, bool):
        cure = "give the drafts accepted before the first miss: what agrees after a miss was never accepted."
        raise InputError(where, "a mask of tokens that agree", "counts of accepted drafts", cure)
    if not isinstance(content, Mapping):
        cure = "a mean or a list of fractions has no single meaning: give counts."
        raise InputError(where, _short(content), "objects, or drafts accepted in each verify step", cure)
    for key, read in _NESTED.items():
        if content.get(key) is not None:
            return read(content, where)
    return [_from_counters(content, where)]


def _steps(values: Any, where: str) -> tuple[int, ...]:
    steps = _integers({"accepted drafts": values}, "accepted drafts", where)
    if (most := max(steps, default=0)) > MOST_DRAFTS:
        raise InputError(where, f"{most} drafts accepted in one step", f"at most {MOST_DRAFTS}")
    return steps


def _count(steps: Sequence[int]) -> tuple[int, ...]:
    """The histogram of accepted drafts per step; a negative count is left to be called impossible."""
    times = Counter(steps)
    return tuple(times[accepted] for accepted in range(max(steps) + 1))


def _from_response(content: Mapping[str, Any], where: str) -> list[Entry]:
    """A whole response of ``/generate``, or a line that ``save_responses`` wrote."""
    said = {key: content[key] for key in ("category", "prompt_tokens") if content.get(key) is not None}
    entry = _from_counters({**_object(content, "meta_info", where), **said}, where)
    steps = content.get("accepted_per_step")
    return [entry if steps is None else entry | {"steps": _steps(steps, f"{where} accepted_per_step")}]


def _from_openai(content: Mapping[str, Any], where: str) -> list[Entry]:
    """A chat completion: counts lie in a choice's ``meta_info``, in ``sglext`` or in its ``spec_tokens_details``."""
    usage = _object(content, "usage", where)
    tokens = {key: usage[key] for key in ("completion_tokens", "prompt_tokens") if key in usage}
    details = list(_find(content["choices"])) or list(_find(content))
    if len(details) != 1:  # several choices share one count of completion tokens
        tokens = {}
    return [_from_counters({**detail, **tokens}, where) for detail in details or [{}]]


def _find(content: Any) -> Iterator[Mapping[str, Any]]:
    """The outermost objects in ``content`` that hold counts of speculation."""
    if isinstance(content, Mapping) and content.keys() & {*HISTOGRAM, *ACCEPTED, *PROPOSED, *STEPS, *LENGTH, *RATE}:
        yield content
        return
    children = content.values() if isinstance(content, Mapping) else content if isinstance(content, list) else ()
    for child in children:
        yield from _find(child)


def _from_alpha(content: Mapping[str, Any], where: str) -> list[Entry]:
    """EAGLE's alpha scripts: ``alpha`` right of ``alpha_num`` tried, by position."""
    right, tried = _integers(content, "alpha", where), _integers(content, "alpha_num", where)
    return [{"tried": tuple(zip(right, tried, strict=False))}]


def _from_vllm(content: Mapping[str, Any], where: str) -> list[Entry]:
    """vLLM's counters as an object (``SpecDecodingStats``, ``v1/spec_decode/metrics.py``)."""
    per_position = _integers(content, "num_accepted_tokens_per_pos", where)
    return [dict(from_positions(_integer(content, ("num_drafts",), where) or 0, per_position))]


def _from_vllm_bench(content: Mapping[str, Any], where: str) -> list[Entry]:
    """``vllm bench serve`` (``benchmarks/serve.py``): counts of the run, and shares of its steps by position."""
    steps, accepted, drafted = (
        _integer(content, (f"spec_decode_{name}",), where) for name in ("num_drafts", "accepted_tokens", "draft_tokens")
    )
    key = "spec_decode_per_position_acceptance_rates"
    shares = _numbers(content, key, where) if content.get(key) else ()
    counts = [round(share * (steps or 0)) for share in shares]
    exact = sum(counts) == accepted and bool(counts)
    positions = from_positions(steps or 0, counts) if exact else {"verify_steps": steps}
    return [{**positions, "accepted": accepted, "proposed": drafted}]


_NESTED: dict[str, Callable[[Mapping[str, Any], str], list[Entry]]] = {
    "meta_info": _from_response,
    "choices": _from_openai,
    "internal_states": lambda content, where: entries(content["internal_states"], f"{where} internal_states"),
    "alpha_num": _from_alpha,
    "num_accepted_tokens_per_pos": _from_vllm,
    "spec_decode_num_drafts": _from_vllm_bench,
}


def _from_counters(content: Mapping[str, Any], where: str) -> Entry:
    """SGLang's ``meta_info``, 0.5.23 or older, or any object with some of its keys."""
    histogram = next((_integers(content, key, where) for key in HISTOGRAM if content.get(key)), ())
    if len(histogram) > MOST_DRAFTS + 1:
        raise InputError(where, f"a histogram of {len(histogram) - 1} drafts in one step", f"at most {MOST_DRAFTS}")
    stated = {
        name: value
        for name, keys in (("accept_length", LENGTH), ("accept_rate", RATE))
        if (value := _number(content, keys, where)) is not None
    }
    if content.get("bonus") is False and "accept_length" in stated:  # said to leave the target's own token out
        stated["accept_length"] += 1
    category = content.get("category")
    if isinstance(category, (list, dict)):
        raise InputError(f"{where} category", _short(category), "a word")
    return {
        "histogram": histogram or None,
        "verify_steps": _integer(content, STEPS, where),
        "accepted": _integer(content, ACCEPTED, where),
        "proposed": _integer(content, PROPOSED, where),
        "completion_tokens": _integer(content, ("completion_tokens",), where),
        "stated": stated,
        "prompt_tokens": _integer(content, ("prompt_tokens",), where),
        "category": None if category is None else str(category),
    }


def _short(value: Any) -> str:
    return repr(value)[:80]


def _object(content: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = {} if content.get(key) is None else content[key]
    if not isinstance(found, Mapping):
        raise InputError(f"{where} {key}", _short(found), "an object")
    return found


def _number(content: Mapping[str, Any], keys: Sequence[str], where: str) -> float | None:
    for key in keys:
        value = content.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -MOST <= value <= MOST:  # nor NaN
            raise InputError(f"{where} {key}", _short(value), f"a number of at most {MOST:g}")
        return float(value)
    return None


def _integer(content: Mapping[str, Any], keys: Sequence[str], where: str) -> int | None:
    value = _number(content, keys, where)
    if value is not None and value != int(value):
        raise InputError(f"{where} {' or '.join(keys)}", value, "a whole number")
    return None if value is None else int(value)


def _numbers(content: Mapping[str, Any], key: str, where: str) -> tuple[float, ...]:
    values = content.get(key)
    if not isinstance(values, list) or None in values:
        raise InputError(f"{where} {key}", _short(values), "a list of numbers")
    return tuple(_number({key: value}, (key,), where) for value in values)


def _integers(content: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    values = _numbers(content, key, where)
    if not all(value.is_integer() for value in values):
        raise InputError(f"{where} {key}", _short(list(values)), "whole numbers")
    return tuple(map(int, values))
