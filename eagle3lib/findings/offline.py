"""What notebook 03 can predict from the inputs at hand; what is missing is said, and that part left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lib.errors import InputError
from eagle3lib.findings.config_rules import inspect
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target_states import TargetTensors
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.acceptance import Acceptance
from eagle3lib.measuring.forecast import Setting, predicted, setting_forecast
from eagle3lib.measuring.materials import material
from eagle3lib.measuring.served import ServedForecast, forecast_served
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.samples import read_samples

#: Passes items on and shows how far it is.
Watch = Callable[[Iterable, str], Iterable]


@dataclass(frozen=True)
class Offline:
    """Predictions for the samples and for the requests that were served, and why others were left out."""

    samples: tuple[Acceptance, ...] = ()
    served: tuple[ServedForecast, ...] = ()
    left_out: tuple[str, ...] = ()


def offline(
    draft: str, target: str, launch: str, engine: str, samples: str, reports: Sequence[EngineReport],
    reports_path: str, setting: Setting | int, cache: Path, watch: Watch = lambda items, words: items,
) -> Offline:  # fmt: skip
    """Chains or trees of ``setting`` under the wiring that the engine's rules give."""
    setting = setting if isinstance(setting, tuple) else (setting, 1, setting + 1)
    if not (draft and target):
        return Offline(left_out=("Not predicted: that needs draft and target.",))
    try:
        wiring = inspect(draft, target, launch, engine).runnable_wiring
        tensors = TargetTensors.load(target)
        loaded = Draft.load(draft, tensors.embedding)
    except InputError as error:
        return Offline(left_out=(f"Not predicted. {error}",))
    made: tuple[Acceptance, ...] = ()
    served: tuple[ServedForecast, ...] = ()
    left_out = []
    if samples:
        try:
            made = (_samples(samples, target, tensors, loaded, wiring, setting, cache, watch),)
        except InputError as error:
            left_out.append(f"The samples are not predicted. {error}")
    try:
        served = tuple(forecast_served(reports, reports_path, loaded, wiring, target, tensors, cache, setting))
    except InputError as error:
        left_out.append(f"The served requests are not predicted. {error}")
    return Offline(made, served, tuple(left_out))


def _samples(
    path: str, target: str, tensors: TargetTensors, draft: Draft, wiring: Wiring, setting: Setting, cache: Path,
    watch: Watch,
) -> Acceptance:  # fmt: skip
    vocab, width = tensors.embedding.shape
    forecasts = [
        setting_forecast(draft, wiring, material(sample, target, tensors, cache, wiring.boundaries), setting)
        for sample in watch(read_samples(path, width, vocab=vocab), "samples")
    ]
    return predicted(forecasts, setting, "predicted for the samples")
