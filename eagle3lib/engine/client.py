"""Send requests to a running SGLang server, streamed where the order of verify steps matters."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading.engine_json import HISTOGRAM
from eagle3lib.reading.files import write_text
from eagle3lib.reading.prompts import Prompt

MAX_NEW_TOKENS = 96


@dataclass(frozen=True)
class Response:
    """One finished request."""

    index: int
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    #: What SGLang reports of the request, ``spec_*`` counters included.
    meta_info: Mapping[str, Any]
    #: Wall time of this request; requests that ran beside it share the machine.
    seconds: float
    category: str | None = None
    #: Drafts accepted in each verify step, in order; ``None`` where the stream did not show every step.
    accepted_per_step: tuple[int, ...] | None = None

    @property
    def histogram(self) -> tuple[int, ...]:
        """Verify steps by accepted drafts; empty without speculation."""
        return histogram_of(self.meta_info)

    def to_json(self) -> dict[str, Any]:
        """One line of a JSONL file that serves both as ``engine_reports`` and as ``samples``."""
        return {
            "request": self.index,
            "input_ids": [*self.input_ids, *self.output_ids],
            "prompt_tokens": len(self.input_ids),
            "category": self.category,
            "meta_info": dict(self.meta_info),
            "accepted_per_step": self.accepted_per_step,
            "seconds": self.seconds,
        }


def save_responses(responses: Sequence[Response], path: str | Path) -> Path:
    """Write ``responses`` as JSONL, in one move; the path."""
    write_text(Path(path), "".join(json.dumps(response.to_json()) + "\n" for response in responses))
    return Path(path)


@dataclass(frozen=True)
class Client:
    """A server that listens at ``url``, whoever started it."""

    url: str

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int = 1,
        max_new_tokens: int = MAX_NEW_TOKENS,
        flush: bool = True,
        stream: bool = True,
    ) -> list[Response]:
        """Generate greedily, at most ``concurrency`` prompts at a time; the responses in the order of the prompts.

        Args:
            max_new_tokens: where a prompt has no limit of its own.
            flush: empty the prefix cache first, so that each prompt is computed in full.
            stream: one chunk a verify step, which shows the steps' order and costs the server some speed.

        Raises:
            InputError: the server refused a request, broke off, or is not there.
        """
        if not prompts:
            raise InputError("prompts", "none", "at least one request")
        if flush:
            self.flush()

        def one(index: int, prompt: Prompt) -> Response:
            return self._generate(index, prompt, prompt.max_new_tokens or max_new_tokens, stream)

        pool = ThreadPoolExecutor(concurrency)
        try:
            return list(pool.map(one, range(len(prompts)), prompts))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C the rest is not waited for

    def flush(self) -> None:
        """Empty the prefix cache once the server is idle; right after a response it is not yet."""
        with self._open("/flush_cache?timeout=30", {}) as answer:
            answer.read()

    def server_info(self) -> dict[str, Any]:
        """The server's resolved flags and internal states."""
        with self._open("/server_info") as answer:
            info: dict[str, Any] = json.load(answer)
            return info

    def is_ready(self) -> bool:
        """Both routes answer: the first when the server listens, the second when its own warm-up is done."""
        try:
            for route in ("/model_info", "/health"):
                self._open(route, timeout=30).close()
        except InputError:
            return False
        return True

    def _generate(self, index: int, prompt: Prompt, max_new_tokens: int, stream: bool) -> Response:
        sampling = {"temperature": 0.0, "max_new_tokens": max_new_tokens}
        body = {"input_ids": list(prompt.input_ids), "sampling_params": sampling, "stream": stream}
        started, counts, last = time.perf_counter(), [], None
        for last in self._chunks("/generate", body):
            counts.append(int(last["meta_info"]["completion_tokens"]))
        seconds = time.perf_counter() - started
        if last is None or last["meta_info"].get("finish_reason") is None:
            raise InputError(f"{self.url}/generate", f"request {index} broke off", "a finished response")
        return Response(
            index=index,
            input_ids=tuple(prompt.input_ids),
            output_ids=tuple(last["output_ids"]),
            meta_info=last["meta_info"],
            seconds=seconds,
            category=prompt.category,
            accepted_per_step=accepted_per_step(counts, last["meta_info"]),
        )

    def _chunks(self, route: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The server-sent events of a stream, or the one line of a plain answer."""
        with self._open(route, body) as answer:
            for line in answer:
                text = line.decode().strip().removeprefix("data:").strip()
                if text and text != "[DONE]":
                    chunk = json.loads(text)
                    if "error" in chunk:
                        raise InputError(self.url + route, chunk["error"], "an answered request")
                    yield chunk

    def _open(
        self, route: str, body: Mapping[str, Any] | None = None, timeout: float = 600.0
    ) -> http.client.HTTPResponse:
        """GET, or with a body POST."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.rstrip("/") + route, data, {"Content-Type": "application/json"})
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            detail = error.read(500).decode(errors="replace")
            raise InputError(request.full_url, f"HTTP {error.code}: {detail}", "an answered request") from error
        except OSError as error:
            raise InputError(request.full_url, str(error), "a running SGLang server") from error
        return answer


def histogram_of(meta_info: Mapping[str, Any]) -> tuple[int, ...]:
    """``[j]`` = verify steps with j accepted drafts."""
    return tuple(next((meta_info[key] for key in HISTOGRAM if meta_info.get(key)), ()))


def accepted_per_step(completion_tokens: Sequence[int], meta_info: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Accepted drafts of each verify step from the stream's running counts of completion tokens.

    The first chunk holds the token sampled at prefill. A step adds its accepted drafts and the bonus token.
    The last one may be cut by a stop token or the length limit; the server counts its accepted drafts before
    the cut, so they are what its total leaves over.

    Returns:
        One count a step, or ``None`` where a chunk was lost or merged, or the server does not speculate.
    """
    histogram = histogram_of(meta_info)
    if not histogram or not completion_tokens or completion_tokens[0] != 1:
        return None
    steps = [after - before - 1 for before, after in pairwise(completion_tokens)]
    total = sum(accepted * count for accepted, count in enumerate(histogram))
    steps[-1:] = [total - sum(steps[:-1])]
    seen = Counter(steps)
    agrees = all(seen.pop(accepted, 0) == count for accepted, count in enumerate(histogram)) and not seen
    return tuple(steps) if agrees else None
