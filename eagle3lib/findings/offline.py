"""What notebook 03 can predict from the inputs at hand; what is missing is said, and that part left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lib.errors import InputError
from eagle3lib.findings.config_rules import inspect
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target_states import TargetTensors
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.acceptance import Acceptance, from_histograms
from eagle3lib.measuring.expected import Rule, expected
from eagle3lib.measuring.forecast import Setting, predicted, setting_forecast
from eagle3lib.measuring.materials import Material, material
from eagle3lib.measuring.served import ServedForecast, forecast_served
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.launch import Launch
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
    reports_path: str, setting: Setting, cache: Path, watch: Watch = lambda items, words: items,
    temperature: float = 0.0,
) -> Offline:  # fmt: skip
    """Chains or trees of ``setting`` under the wiring that the engine's rules give.

    Above temperature 0 the samples give an expectation; what was served is predicted from its own tokens still,
    unless the engine sampled by rejection.
    """
    if not (draft and target):
        return Offline(left_out=("Not predicted: that needs draft and target.",))
    try:
        rejection = Launch.parse(launch).switch("speculative_use_rejection_sampling")
        wiring = inspect(draft, target, launch, engine).runnable_wiring
        tensors = TargetTensors.load(target)
        pair = _Pair(Draft.load(draft, tensors.embedding), wiring, target, tensors, setting, cache)
    except InputError as error:
        return Offline(left_out=(f"Not predicted. {error}",))
    made: list[Acceptance] = []
    served: tuple[ServedForecast, ...] = ()
    left_out = []
    if samples:
        try:
            materials = pair.materials(samples, watch)
            if temperature:
                made += [pair.expected(materials, temperature, "rejection" if rejection else "target-only")]
            else:
                made += pair.predicted(materials)
        except InputError as error:
            left_out.append(f"The samples are not predicted. {error}")
    if temperature and rejection:
        left_out.append("The served requests are not predicted: under rejection sampling the draft's draws decide.")
    else:
        try:
            served = tuple(forecast_served(reports, reports_path, pair.draft, wiring, target, tensors, cache, setting))
        except InputError as error:
            left_out.append(f"The served requests are not predicted. {error}")
    return Offline(tuple(made), served, tuple(left_out))


@dataclass(frozen=True)
class _Pair:
    """A draft under one wiring beside its target."""

    draft: Draft
    wiring: Wiring
    target: str
    tensors: TargetTensors
    setting: Setting
    cache: Path

    def materials(self, path: str, watch: Watch) -> Iterator[Material]:
        vocab, width = self.tensors.embedding.shape
        for sample in watch(read_samples(path, width, vocab=vocab), "samples"):
            yield material(sample, self.target, self.tensors, self.cache, self.wiring.boundaries)

    def predicted(self, materials: Iterable[Material]) -> list[Acceptance]:
        """As served; of trees also as they would be if each node attended to its own chain."""
        tree = self.setting[1] > 1
        engine, textbook = [], []
        for each in materials:
            engine.append(setting_forecast(self.draft, self.wiring, each, self.setting))
            if tree:
                textbook.append(setting_forecast(self.draft, self.wiring, each, self.setting, ancestors=True))
        made = [predicted(engine, self.setting, "predicted for the samples")]
        return made + ([predicted(textbook, self.setting, "what if: keys of true ancestors")] if tree else [])

    def expected(self, materials: Iterable[Material], temperature: float, rule: Rule) -> Acceptance:
        num_steps, topk, num_draft_tokens = self.setting
        counts = [
            expected(self.draft, self.wiring, each, self.target, self.tensors, self.setting, temperature, rule)
            for each in materials
        ]
        return from_histograms(
            f"expected at temperature {temperature:g}", "offline",
            f"{rule} sampling, expectation along the samples' tokens; bonus token included", counts,
            num_steps=num_steps, num_draft_tokens=num_steps + 1 if topk == 1 else num_draft_tokens,
        )  # fmt: skip
