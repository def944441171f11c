"""The acceptance that engines report, in any of their formats, as counts per request.

A report keeps what its source determines and nothing else: zero and absent counters mean "not measured".
``eagle3lib.measuring.acceptance`` turns it into rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.reading import engine_json, engine_text
from eagle3lib.reading.files import files_at, load_json
from eagle3lib.reading.run_flags import BESIDE, flags_beside, flags_within, run_flags
from eagle3lib.reading.samples import Sample, from_record
from eagle3lib.reading.setting import Setting

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
#: Files that lie beside reports and are none.
_NO_REPORT = (".md", ".rst", ".html", ".png", ".jpg", ".svg", ".pdf", ".py", ".sh", ".yaml", ".yml", ".csv", ".ipynb")


@dataclass(frozen=True)
class RequestReport:
    """One request (or one log window, one rank, one counter) of a report; ``None`` where it is not given."""

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
    sample: Sample | None = field(default=None, repr=False)  #: its token ids, where its line of the file holds them

    @property
    def form(self) -> str:
        """The best of ``DEFINITIONS`` that this request allows; counts that cannot be allow none."""
        counts = [*(self.histogram or ()), self.verify_steps, self.accepted, self.completion_tokens]
        if any(count is not None and count < 0 for count in counts):
            return "unmeasured"
        fits = {
            "alpha": self.tried and all(0 <= right <= tried for right, tried in self.tried),
            "histogram": self.histogram and sum(self.histogram),
            "counters": self.verify_steps and self.accepted is not None,
            "completion": self.verify_steps and self.completion_tokens,
            "average": self.stated.get("accept_length"),
        }
        return next((form for form, fit in fits.items() if fit), "unmeasured")

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

    @property
    def verified(self) -> bool:
        """Whether it took a verify step whose drafts were counted."""
        return sum(self.histogram or ()) > 0


@dataclass(frozen=True)
class EngineReport:
    """One source: a file, named after it."""

    source: str
    form: str
    requests: tuple[RequestReport, ...] = field(repr=False)
    flags: Mapping[str, Any] = field(default_factory=dict)  #: of the server, where this file or one beside it has them
    setting: Setting = Setting()  #: that it was served under, as far as it is known; see ``engine.speculation``
    unreadable: str = ""  #: why nothing was read from a file among others that are reports

    @property
    def definition(self) -> str:
        return DEFINITIONS[self.form]

    @property
    def measured(self) -> tuple[RequestReport, ...]:
        """The requests that have the report's form; the others have less or nothing."""
        forms = {*DEFINITIONS} - {"unmeasured"} if self.form == "window" else {self.form}
        return tuple(request for request in self.requests if request.form in forms)

    def with_tokens(self, vocab: int) -> list[RequestReport]:
        """The requests whose histogram and token ids, below ``vocab``, are known: those that can be predicted."""
        counted = self.requests if self.form == "histogram" else ()
        known = [request for request in counted if request.verified and request.sample is not None]
        return [request for request in known if int(request.sample.input_ids.max()) < vocab]


def read_engine_reports(path: str | Path) -> list[EngineReport]:
    """Every source at ``path``: a file, or each file of a folder that can be one, ``unreadable`` ones named.

    Raises:
        InputError: nothing there, or nothing that is one of the known forms.
    """
    files = files_at(path, "engine_reports", "a file or folder of engine reports", without=_NO_REPORT)
    flags = flags_beside(files)
    reports, refused = [], []
    for file in [file for file in files if not file.name.endswith(BESIDE)] or files:
        try:
            found = parse_engine_report(file.read_text(encoding="utf-8-sig", errors="replace"), file.name)
            reports.append(replace(found, flags=flags.get(file) or found.flags))
        except InputError as error:
            refused.append(error)
            reports.append(EngineReport(file.name, "unmeasured", (), unreadable=str(error)))
    if len(refused) == len(reports):
        raise refused[0]
    return reports


def parse_engine_report(text: str, source: str) -> EngineReport:
    """One source from its text: JSON, JSONL, Prometheus text or a server log."""
    where = f"engine report {source}"
    content, broken = load_json(text, where)
    if content is not None:
        requests = [RequestReport(**entry) for entry in engine_json.entries(content, where)]
        return report(source, _with_tokens(requests, content, source), flags=flags_within(content) or run_flags(text))
    for parse in (engine_text.prometheus, engine_text.vllm_log, engine_text.sglang_log):
        try:
            requests = [RequestReport(**entry) for entry in parse(text)]
        except (ValueError, LookupError, OverflowError) as error:
            raise InputError(where, f"damaged text ({error})"[:200], "whole lines, as the server gave them") from None
        if requests:
            return report(source, requests, "window" if parse is engine_text.sglang_log else None, run_flags(text))
    expected = "SGLang meta_info or log, Prometheus text, vLLM metrics or a list of accepted counts"
    raise InputError(where, broken if text.lstrip().startswith("{") else "no acceptance counts", expected)


def _with_tokens(requests: Sequence[RequestReport], content: Any, source: str) -> list[RequestReport]:
    """Each request with the token ids that its own object holds, as ``client.save_responses`` writes them."""
    records = content if isinstance(content, list) else [content]
    if len(records) != len(requests):  # several requests an object
        return list(requests)
    found = []
    for number, (request, record) in enumerate(zip(requests, records, strict=True), 1):
        try:
            found.append(replace(request, sample=from_record(f"{source}:{number}", record)))
        except InputError:  # ordinary meta_info
            found.append(request)
    return found


def report(
    source: str, requests: Sequence[RequestReport], form: str | None = None, flags: Mapping[str, Any] | None = None
) -> EngineReport:
    """A report of ``requests`` in the best form that any of them has, or in ``form`` if any has one."""
    forms = {request.form for request in requests}
    best = next((name for name in DEFINITIONS if name in forms), "unmeasured")
    return EngineReport(source, form if form and best != "unmeasured" else best, tuple(requests), flags or {})
