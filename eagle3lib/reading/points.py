"""Finished throughput points, from our own sweep, tables, or SGLang's benchmarks."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from eagle3lib.errors import InputError
from eagle3lib.reading.fields import mapping, number
from eagle3lib.reading.files import files_at, load_json, read_text
from eagle3lib.reading.launch import SETTING
from eagle3lib.reading.setting import OFF, Setting

Status = Literal["ok", "failed", "refused"]
FIELDS = Setting._fields


@dataclass(frozen=True)
class Point:
    """One measurement of one setting at one load."""

    num_steps: int
    topk: int
    num_draft_tokens: int
    concurrency: int = 1
    #: Completion tokens per second of wall time, summed over requests; ``None`` unless ``ok``.
    tokens_per_second: float | None = None
    accept_length: float | None = None  #: bonus token included; ``None`` without speculation
    repeat: int = 0
    status: Status = "ok"
    reason: str = ""

    @property
    def setting(self) -> Setting:
        return Setting(self.num_steps, self.topk, self.num_draft_tokens)


def read_points(path: str | Path) -> list[Point]:
    """The points of a JSONL, JSON or CSV file, or of every such file in a folder.

    Raises:
        InputError: nothing there, or a line without the fields of a point or with values that cannot be.
    """
    files = files_at(path, "points", "JSONL or CSV of finished points")
    points = [point for file in files for point in parse_points(read_text(file), file.name)]
    if not points:
        raise InputError(f"points {Path(path).name}", "no point", "one point a line")
    return _numbered(points)


def parse_points(text: str, source: str) -> list[Point]:
    """The points of one file's text."""
    if text.lstrip()[:1] in ("{", "["):
        records, broken = load_json(text, f"points {source}")
        if broken:
            raise InputError(f"points {source}", broken, "one JSON object a line, or a list of them")
        records = records if isinstance(records, list) else [records]
    else:
        records = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    return [_point(record, f"points {source} entry {at}") for at, record in enumerate(records, 1)]


def _point(record: Any, where: str) -> Point:
    if not isinstance(record, Mapping):
        raise InputError(where, f"{record!r}", "an object with the fields of a point")
    if "output_throughput" in record:
        record = _from_serving(record, where)
    elif "step_time" in record and "speed" in record:
        record = _from_bench_speculative(record, where)
    status = record.get("status") or "ok"
    if status not in ("ok", "failed", "refused"):
        raise InputError(f"{where} status", status, "ok, failed or refused")
    speed = _number(record, "tokens_per_second", where)
    if status == "ok" and (speed is None or speed <= 0):
        raise InputError(f"{where} tokens_per_second", speed, "a number above 0")
    length = _number(record, "accept_length", where) or None  # benchmarks write 0.0 for "none"
    if length is not None and length < 1:
        raise InputError(f"{where} accept_length", length, "at least 1: the bonus token counts")
    point = Point(
        *(_count(record, name, where) for name in FIELDS),
        concurrency=_count(record, "concurrency", where, 1),
        tokens_per_second=speed if status == "ok" else None,
        accept_length=length,
        repeat=_count(record, "repeat", where, 0),
        status=status,
        reason=str(record.get("reason") or ""),
    )
    if point.concurrency < 1 or (0 in point.setting and point.setting != OFF):
        found = f"{tuple(point.setting)} at concurrency {point.concurrency}"
        raise InputError(where, found, "steps, topk and draft tokens above 0, or all 0 for no speculation")
    return point


def _from_serving(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``sglang.benchmark.serving``: the flags are in the server's own account."""
    server = mapping(record if record.get("server_info") else {}, "server_info", where)
    speculates = server.get("speculative_algorithm") is not None
    setting = [server.get(name, 0) if speculates else 0 for name in SETTING]
    return {
        **dict(zip(FIELDS, setting, strict=True)),
        "concurrency": record.get("max_concurrency") or max(1, round(_number(record, "concurrency", where) or 1)),
        "tokens_per_second": record["output_throughput"],
        "accept_length": record.get("accept_length") if speculates else None,
    }


def _from_bench_speculative(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``scripts/playground/bench_speculative.py``: ``speed`` = accept length / step time, of one request."""
    batch = _count(record, "batch_size", where, 1)
    return {
        "num_steps": record.get("steps"),
        "topk": record.get("topk"),
        "num_draft_tokens": record.get("num_draft_tokens"),
        "concurrency": batch,
        "tokens_per_second": (_number(record, "speed", where) or 0) * batch,
        "accept_length": record.get("acc_length") if _count(record, "steps", where) else None,
    }


def _number(record: Mapping[str, Any], name: str, where: str) -> float | None:
    """A finite number, which a CSV holds as text; None where it is empty."""
    value = record.get(name)
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value) if value else None
    return number({name: value}, name, where)


def _count(record: Mapping[str, Any], name: str, where: str, absent: int | None = None) -> int:
    value = _number(record, name, where)
    value = absent if value is None else value
    if value is None or value != int(value) or value < 0:
        raise InputError(f"{where} {name}", f"{record.get(name)!r}", "a whole number, 0 or more")
    return int(value)


def _numbered(points: list[Point]) -> list[Point]:
    """Points without a repeat number, numbered within their setting and load."""
    if len({(point.setting, point.concurrency, point.repeat) for point in points}) == len(points):
        return points
    groups: defaultdict[tuple[Setting, int], count[int]] = defaultdict(count)
    return [replace(point, repeat=next(groups[point.setting, point.concurrency])) for point in points]
