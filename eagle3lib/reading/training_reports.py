"""The accuracy that trainers report for a draft, under each trainer's own definition.

Depths count from 1 here; trainers' names count from 0.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any, Literal

from eagle3lib.errors import InputError
from eagle3lib.reading.fields import is_number

#: ``accuracy`` feeds the true tokens and divides by all positions, whatever was right before: only its first
#: depth is acceptance.
Meaning = Literal["accuracy", "conditional", "cumulative", "accept_length", "overlap", "ambiguous", "impossible"]


@dataclass(frozen=True)
class Metric:
    """What one of a trainer's numbers means."""

    meaning: Meaning
    definition: str
    bonus: bool = False  #: an accept length that counts the target's own token
    draft_vocab_targets: bool = False  #: targets outside the draft vocabulary cannot be wrong: optimistic


def _in_draft_vocab(meaning: Meaning, definition: str, bonus: bool = False) -> Metric:
    return Metric(meaning, f"{definition}; target = argmax over the draft vocabulary", bonus, draft_vocab_targets=True)


#: (trainer, metric) -> meaning. Sources: SpecForge ``eval/evaluator.py``, ``core/lk_loss.py``; speculators
#: ``models/eagle3/metrics.py``; EAGLE ``traineagle3/cnets.py``; Model-Optimizer ``eagle_utils.py``.
METRICS: Mapping[tuple[str, str], Metric] = {
    ("specforge", "acc"): Metric("accuracy", "right at depth d with true tokens fed / all masked-in positions"),
    ("specforge", "acceptance_rate"): Metric(
        "overlap",
        "sum of min(target, draft) probability at temperature 1, targets in the draft vocabulary only",
        draft_vocab_targets=True,
    ),
    ("specforge", "simulated_acc_len"): Metric("accept_length", "a1 + a1 a2 + ...: no bonus token"),
    ("speculators", "cond_acc"): _in_draft_vocab("conditional", "right at depth d / right at all earlier depths"),
    ("speculators", "full_acc"): _in_draft_vocab("cumulative", "right at depths 1..d / all positions"),
    ("eagle", "acc"): Metric("accuracy", "right at depth d and in the draft vocabulary / all masked-in positions"),
    ("modelopt", "train_acc"): _in_draft_vocab("accuracy", "right at depth d with true tokens fed / all positions"),
    ("modelopt", "estimated_training_ar"): _in_draft_vocab("accept_length", "1 + a1 + a1 a2 + ...", bonus=True),
}
UNKNOWN = Metric("ambiguous", "not known: it may be per position, cumulative or with the bonus token")
SAME_METRIC = {"per_position_acc": "acc", "avg_acc": "acc", "epochacc": "acc", "parallel": "train_acc"}
_SAMPLES = ("training_samples", "train_samples", "num_samples")
SAME_TRAINER = {"angelslim": "eagle", "model-optimizer": "modelopt"}
#: The metric of a bare number.
_NAMELESS = "not named"
#: How far a cumulative metric may rise: the last positions have no deeper ones, and digits are cut.
_SLACK = 0.006
#: One value in a log or metrics file: the trainers' keys count depths from 0.
_KEY = re.compile(
    r"^(?:\w+/)*(cond_acc|full_acc|acceptance_rate|per_position_acc|simulated_acc_len|estimated_training_ar|epochacc|acc"
    r"|parallel|accept_length|acceptance_length)(?:_0_step)?(?:_(\d+))?(?:_epoch)?$"
)
_PAIR = re.compile(r"['\"]?([A-Za-z_][\w/.-]*)['\"]?\s*[:=]\s*(\[[^\]]*\]|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True, kw_only=True)
class TrainingReport(Metric):
    """One trainer's metric: a value per depth from 1, or one accept length; and what it means."""

    source: str
    trainer: str
    metric: str
    values: tuple[float, ...]
    training_samples: int | None = None  #: conversations trained on, where the report names them

    @property
    def conditional(self) -> tuple[float | None, ...] | None:
        """Right at depth d, given right at all earlier ones; ``None`` where the metric does not determine it."""
        match self.meaning:
            case "accuracy":
                return (self.values[0], *[None] * (len(self.values) - 1))
            case "conditional":
                return self.values
            case "cumulative":
                before = (1.0, *self.values)
                return tuple(now / last if last else 0.0 for now, last in zip(self.values, before, strict=False))
        return None

    @property
    def marginal(self) -> tuple[float | None, ...] | None:
        """Right at depths 1..d."""
        if self.meaning == "conditional":
            return tuple(accumulate(self.values, mul))
        return self.values if self.meaning == "cumulative" else self.conditional

    def accept_length(self, num_steps: int | None = None) -> float | None:
        """Bonus token included, of ``num_steps`` draft tokens; ``None`` where the metric does not determine it."""
        if self.meaning == "accept_length":
            return self.values[0] + (0.0 if self.bonus else 1.0)
        if self.meaning == "accuracy" or self.marginal is None or (num_steps or 0) > len(self.values):
            return None
        return 1.0 + sum(value or 0.0 for value in self.marginal[:num_steps])


def read_training_report(source: str | Path) -> list[TrainingReport]:
    """The reports in a JSON or JSONL file, a trainer's own log, or JSON text given as such.

    Of a metric logged often the last values count.

    Raises:
        InputError: nothing there, or no metric of a trainer in it.
    """
    text = _text(source)
    return parse_training_report(text, "training_report" if text == str(source) else Path(source).name)


def _text(source: str | Path) -> str:
    """JSON or a bare number is the report itself; anything else is a path."""
    if str(source).lstrip()[:1] in ("{", "[") or is_number(_loads(str(source))):
        return str(source)
    path = Path(source)
    if not path.is_file():
        raise InputError("training_report", f"no file {path.name}", "a trainer's metrics, or JSON that names them")
    return path.read_text(errors="replace")


def _loads(text: str) -> Any:
    """The JSON document; ``None`` where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def parse_training_report(text: str, source: str) -> list[TrainingReport]:
    """As :func:`read_training_report`, from the text itself."""
    records = _records(text)
    reports = [_stated(record, source) for record in records if "metric" in record]
    reports = reports or _logged(records, source)
    if not reports:
        cure = 'name both: {"trainer": "speculators", "metric": "cond_acc", "values": [0.61, 0.48]}.'
        raise InputError(f"training report {source}", "no metric of a known trainer", "trainer and metric named", cure)
    return reports


@dataclass(frozen=True)
class CheckpointMetrics:
    """One of several checkpoints of a training: its acceptance under whatever metric was logged, and its loss."""

    epoch: float
    acceptance: float
    loss: float | None


#: Accept lengths first: they are closest to the gain in serving.
_ACCEPTANCE = ("accept_length", "acceptance_length", "simulated_acc_len", "estimated_training_ar", "cond_acc_0",
               "acc_0")  # fmt: skip
_LOSS = ("avg_loss", "loss")


def checkpoints(source: str | Path) -> list[CheckpointMetrics]:
    """The records of a training report that name an epoch, in order; empty where it is not one record an epoch."""
    found: dict[float, CheckpointMetrics] = {}
    for record in _records(_text(source)):
        plain = {key.rsplit("/", 1)[-1]: value for key, value in _flat(record) if is_number(value)}
        epoch = plain.get("epoch")
        acceptance, loss = (next((plain[key] for key in keys if key in plain), None) for keys in (_ACCEPTANCE, _LOSS))
        if epoch is None or acceptance is None:
            continue
        if epoch in found:
            return []  # logged by the step: too noisy for a peak to mean anything
        found[epoch] = CheckpointMetrics(epoch, acceptance, loss)
    return [found[epoch] for epoch in sorted(found)]


def _records(text: str) -> list[dict[str, Any]]:
    """The objects of a JSON or JSONL file, else the pairs of each line of a log; bare numbers as a nameless metric."""
    content = _loads(text)
    content = content if isinstance(content, list) else [content]
    if all(map(is_number, content)):
        return [{"metric": _NAMELESS, "values": content}]
    if content != [None]:
        return [item for item in content if isinstance(item, dict)]
    records = []
    for line in text.splitlines():
        record = _loads(line)
        if record is None:
            pairs = [(key, _loads(value)) for key, value in _PAIR.findall(line)]
            record = {key: value for key, value in pairs if value is not None}
        if isinstance(record, dict) and record:
            records.append(record)
    return records


def _stated(record: Mapping[str, Any], source: str) -> TrainingReport:
    """A report that names its metric."""
    metric, _ = _metric(str(record["metric"])) or (str(record["metric"]), 0)
    report = _report(source, record.get("trainer"), metric, record.get("values", record.get("value")))
    samples = next((int(record[key]) for key in _SAMPLES if is_number(record.get(key))), None)
    optimistic = record.get("draft_vocab_targets")
    optimistic = report.draft_vocab_targets if optimistic is None else bool(optimistic)
    return replace(report, training_samples=samples, draft_vocab_targets=optimistic)


def _logged(records: Sequence[Mapping[str, Any]], source: str) -> list[TrainingReport]:
    """The last record of each metric; validation before training where a file has both."""
    latest: dict[str, dict[int, Any]] = defaultdict(dict)
    for record in sorted(records, key=lambda record: any(key.startswith(("val", "eval", "test")) for key in record)):
        for key, value in _flat(record):
            if found := _metric(key):
                metric, depth = found
                latest[metric][depth] = value
    reports = []
    for metric, by_depth in latest.items():
        values = by_depth[0] if isinstance(by_depth.get(0), list) else [by_depth[depth] for depth in sorted(by_depth)]
        reports.append(_report(source, None, metric, values))
    return reports


def _metric(key: str) -> tuple[str, int] | None:
    """The metric that a trainer's key means, and its depth from 0; None where it is none."""
    found = _KEY.match(key)
    return (SAME_METRIC.get(found[1], found[1]), int(found[2] or 0)) if found else None


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def _report(source: str, trainer: Any, metric: str, values: Any) -> TrainingReport:
    values = values if isinstance(values, list) else [values]
    if not values or not all(map(is_number, values)):
        where = f"training report {source} {metric}"
        raise InputError(where, f"{values!r}", "numbers: one a depth, or one accept length")
    name = "" if trainer is None else str(trainer).lower()
    name = SAME_TRAINER.get(name, name)
    known = {key[0]: entry for key, entry in METRICS.items() if key[1] == metric and name in ("", key[0])}
    entry = UNKNOWN
    if len({found.meaning for found in known.values()}) == 1:
        named, entry = next(iter(known.items()))
        name = name or named
    if wrong := _impossible(entry, metric, values):
        entry = replace(entry, meaning="impossible", definition=wrong)
    return TrainingReport(**vars(entry), source=source, trainer=name, metric=metric, values=tuple(map(float, values)))


def _impossible(entry: Metric, metric: str, values: Sequence[float]) -> str:
    """What the metric cannot be, in words with its numbers; empty where all can be."""
    length = entry.meaning == "accept_length" or (entry is UNKNOWN and ("len" in metric or metric == _NAMELESS))
    low, high = (1.0 if entry.bonus else 0.0), (math.inf if length else 1.0)
    if outside := [f"{value:g}" for value in values if not low <= value <= high]:
        return f"{metric} {', '.join(outside)}: outside {low:g} to {high:g}"
    if entry.meaning == "cumulative" and any(now > before + _SLACK for before, now in pairwise(values)):
        course = ", ".join(f"{value:g}" for value in values)
        return f"{metric} {course}: rises, though what is right at depths 1 to d + 1 is right at 1 to d"
    return ""
