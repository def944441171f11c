"""Acceptance counts in JSON: SGLang's responses and server info, chat completions, vLLM's counters, EAGLE's alpha.

As in ``engine_text``, every request (or rank, or run) becomes one mapping of ``RequestReport`` fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.engine_text import Entry, from_positions, from_shares
from eagle3lib.reading.fields import mapping, number, numbers

#: SGLang 0.5.23 first, then 0.5.9.
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram", "histogram")
_COUNTS = {
    "verify_steps": ("spec_verify_ct", "verify_ct"),
    "accepted": ("spec_num_correct_drafts", "spec_accept_token_num"),
    "proposed": ("spec_num_proposed_drafts", "spec_draft_token_num"),
}
_STATED = {
    "accept_length": ("spec_accept_length", "avg_spec_accept_length", "accept_length", "acceptance_length",
                      "acc_length"),
    "accept_rate": ("spec_accept_rate", "accept_rate", "acceptance_rate"),
}  # fmt: skip
_TOKENS = ("completion_tokens", "prompt_tokens")
_SPECULATION = {*HISTOGRAM, *(name for names in (*_COUNTS.values(), *_STATED.values()) for name in names)}
#: More drafts than any engine proposes in one step.
MOST_DRAFTS = 1024


def entries(content: Any, where: str) -> list[Entry]:
    """The requests in a JSON document, or in the list of a JSONL file's.

    Raises:
        InputError: no objects and no accepted counts, or a field of the wrong type.
    """
    if isinstance(content, list):
        if content and all(isinstance(item, int) and not isinstance(item, bool) for item in content):
            steps = numbers({"accepted drafts": content}, "accepted drafts", where, whole=True, most=MOST_DRAFTS)
            times = Counter(steps)  # a negative count is left to be called impossible
            histogram = tuple(times[accepted] for accepted in range(max(steps) + 1))
            return [{"histogram": histogram, "steps": steps, "verify_steps": len(steps), "accepted": sum(steps)}]
        return [entry for item in content for entry in entries(item, where)]
    if not isinstance(content, Mapping):
        cure = "a mean, a list of fractions or a mask of tokens that agree has no single meaning: give counts."
        raise InputError(where, repr(content)[:80], "objects, or drafts accepted in each verify step", cure)
    read = next((read for key, read in _READERS.items() if content.get(key) is not None), _from_counters)
    return read(content, where)


def _from_response(content: Mapping[str, Any], where: str) -> list[Entry]:
    """A whole response of ``/generate``, or a line that ``save_responses`` wrote."""
    beside = {key: content[key] for key in ("category", "prompt_tokens") if content.get(key) is not None}
    (entry,) = _from_counters({**mapping(content, "meta_info", where), **beside}, where)
    if content.get("accepted_per_step") is not None:
        entry["steps"] = numbers(content, "accepted_per_step", where, whole=True, most=MOST_DRAFTS)
    return [entry]


def _from_openai(content: Mapping[str, Any], where: str) -> list[Entry]:
    """A chat completion: counts lie in a choice's ``meta_info``, in ``sglext`` or in its ``spec_tokens_details``."""
    usage = mapping(content, "usage", where)
    details = list(_find(content["choices"])) or list(_find(content))
    # several choices share one count of completion tokens
    tokens = {key: usage[key] for key in _TOKENS if key in usage and len(details) == 1}
    return [entry for detail in details or [{}] for entry in _from_counters({**detail, **tokens}, where)]


def _find(content: Any) -> Iterator[Mapping[str, Any]]:
    """The outermost objects in ``content`` that hold counts of speculation."""
    if isinstance(content, Mapping) and content.keys() & _SPECULATION:
        yield content
        return
    children = content.values() if isinstance(content, Mapping) else content if isinstance(content, list) else ()
    for child in children:
        yield from _find(child)


def _from_alpha(content: Mapping[str, Any], where: str) -> list[Entry]:
    """EAGLE's alpha scripts: ``alpha`` right of ``alpha_num`` tried, by position."""
    right, tried = (numbers(content, name, where, whole=True) for name in ("alpha", "alpha_num"))
    return [{"tried": tuple(zip(right, tried, strict=False))}]


def _from_vllm(content: Mapping[str, Any], where: str) -> list[Entry]:
    """vLLM's counters as an object (``SpecDecodingStats``, ``v1/spec_decode/metrics.py``)."""
    steps = number(content, "num_drafts", where, "a whole number", whole=True)
    return [from_positions(steps or 0, numbers(content, "num_accepted_tokens_per_pos", where, whole=True))]


def _from_vllm_bench(content: Mapping[str, Any], where: str) -> list[Entry]:
    """``vllm bench serve`` (``benchmarks/serve.py``): counts of the run, and shares of its steps by position."""
    steps, accepted, proposed = (
        number(content, f"spec_decode_{name}", where, "a whole number", whole=True)
        for name in ("num_drafts", "accepted_tokens", "draft_tokens")
    )
    key = "spec_decode_per_position_acceptance_rates"
    shares = numbers(content, key, where) if content.get(key) else ()
    return [{**from_shares(steps, shares, accepted), "accepted": accepted, "proposed": proposed}]


def _from_counters(content: Mapping[str, Any], where: str) -> list[Entry]:
    """SGLang's ``meta_info``, 0.5.23 or older, or any object with some of its keys."""
    histogram = next((numbers(content, key, where, whole=True) for key in HISTOGRAM if content.get(key)), ())
    if len(histogram) > MOST_DRAFTS + 1:
        raise InputError(where, f"a histogram of {len(histogram) - 1} drafts in one step", f"at most {MOST_DRAFTS}")
    stated = {name: number(content, names, where) for name, names in _STATED.items()}
    stated = {name: value for name, value in stated.items() if value is not None}
    if content.get("bonus") is False and "accept_length" in stated:  # declared not to count bonus tokens
        stated["accept_length"] += 1
    category = content.get("category")
    if isinstance(category, (list, dict)):
        raise InputError(f"{where} category", repr(category)[:80], "a word")
    counts = {**_COUNTS, **{name: name for name in _TOKENS}}
    counts = {name: number(content, names, where, "a whole number", whole=True) for name, names in counts.items()}
    category = None if category is None else str(category)
    return [{"histogram": histogram or None, "stated": stated, "category": category, **counts}]


#: The key that only one kind of object has: how that object is read.
_READERS: dict[str, Callable[[Mapping[str, Any], str], list[Entry]]] = {
    "meta_info": _from_response,
    "choices": _from_openai,
    "internal_states": lambda content, where: entries(content["internal_states"], f"{where} internal_states"),
    "alpha_num": _from_alpha,
    "num_accepted_tokens_per_pos": _from_vllm,
    "spec_decode_num_drafts": _from_vllm_bench,
}
