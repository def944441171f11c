"""The parameters of each notebook: one strict model a notebook, the single source of names, types and help.

The ``parameters`` cell of a notebook is rendered from its model (``render_parameters_cell``) and a test keeps
the two equal. Values come from that cell, from papermill's ``-p`` (which passes lists as text) or from a plan
(where YAML reads ``1e-5`` as text), so text is accepted wherever it can be read without guessing.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from eagle3lib.errors import InputError


def _text(value: object) -> object:
    """``None`` is "not given", a number a name that happens to be all digits; a mapping becomes JSON."""
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value) if isinstance(value, dict) else value


def _path(value: object) -> object:
    text = str(value) if isinstance(value, Path) else _text(value)
    return str(Path(text).expanduser()) if isinstance(text, str) and text.startswith("~") else text


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


def _json_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("expected a list, or a list as JSON text") from None


class IsPath:
    """Marks a parameter that names a file or folder, so that a plan can make it absolute."""


Text = Annotated[str, BeforeValidator(_text)]
PathText = Annotated[str, BeforeValidator(_path), IsPath]
Count = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Positive = Annotated[int, BeforeValidator(_number), Field(ge=1)]
Device = Annotated[str, BeforeValidator(_text), Field(description="auto (a GPU where there is one), cpu, cuda:1")]
#: ``auto`` and the names of ``maths.device.DTYPES``, which would load torch.
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    Field(description="auto (bfloat16 on a GPU, float32 on the CPU), or float32, bfloat16, float16"),
]
Setting = Annotated[list[Count], Field(min_length=3, max_length=3)]


class Parameters(BaseModel):
    """What every notebook accepts; a notebook may ignore one of these, never reject it.

    ``needs``: sets of names, of which one must be given whole. ``demo``: what the demo gives a notebook to start with.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    demo: ClassVar[tuple[str, ...]] = ()
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    run_dir: PathText = Field("", description="folder for records and figures; empty: papermill_runs/by_hand")
    draft: PathText = Field("", description="draft checkpoint folder, any dialect")
    target: PathText = Field("", description="target model folder")
    engine: Text = Field("sglang 0.5.23", description="whose rules apply")
    launch: Text = Field("", description="the server's command line or flags, as one string")
    show_text: bool = Field(False, description="put prompt and completion text into reports")


class ConfigInspection(Parameters):
    needs = ("draft",)
    demo = ("draft", "target")
    longest_prompt: Count = Field(0, description="longest request in tokens; 0: unknown")


class ManualForward(Parameters):
    needs = ("draft target samples",)
    demo = ("draft", "target", "samples")
    samples: PathText = Field("", description="hidden-state files, or a JSONL of token ids")
    depths: Positive = Field(3, description="how many draft depths to measure")
    max_samples: Count = Field(0, description="use the first so many samples; 0: all")
    device: Device = "auto"
    dtype: Dtype = "auto"
    training_report: PathText = Field("", description="a trainer's numbers: a file, or JSON text")
    traffic: PathText = Field("", description="samples recorded from serving, to set beside the others")
    search_wiring: bool = Field(True, description="try the other wirings that make sense")


class Acceptance(Parameters):
    needs = ("samples", "engine_reports", "training_report")
    demo = ("draft", "target", "samples", "training_report")
    samples: PathText = Field("", description="hidden-state files, or a JSONL of token ids")
    engine_reports: PathText = Field("", description="a file or folder of what engines say they accepted")
    training_report: PathText = Field("", description="a trainer's numbers: a file, or JSON text")
    num_steps: Count = Field(0, description="draft steps; 0: from the launch flags, else 3")
    topk: Count = Field(0, description="branches a step; 0: from the launch flags, else 1")
    num_draft_tokens: Count = Field(0, description="tokens a verify step; 0: from the launch flags, else 4")
    temperature: Annotated[float, BeforeValidator(_number)] = Field(
        0.0, ge=0.0, description="sampling temperature of the served run; 0: greedy"
    )
    device: Device = "auto"
    dtype: Dtype = "auto"


class CaptureDiff(Parameters):
    needs = ("draft target capture", "draft target prompts server_url", "draft target prompts launch")
    demo = ("draft", "target", "launch", "prompts")
    capture: PathText = Field("", description="folder of captured inputs; else a server is asked or started")
    server_url: Text = Field("", description="a running server that was started with the capture hook")
    prompts: PathText = Field("", description="JSONL of requests to send")
    reference: PathText = Field("", description="samples folder; empty: compute with the target")
    trained_boundaries: Annotated[list[Count], BeforeValidator(_json_list)] = Field(
        [], description="boundaries the draft was trained on; empty: from samples, record of 02, config"
    )
    max_new_tokens: Positive = Field(32, description="tokens asked for per prompt")
    device: Device = "auto"
    dtype: Dtype = "auto"


class ThroughputSweep(Parameters):
    needs = ("points", "prompts target", "prompts launch")
    demo = ("draft", "target", "launch", "prompts")
    grid: Annotated[list[Setting], BeforeValidator(_json_list), Field(min_length=1)] = Field(
        [[0, 0, 0], [3, 1, 4]], description="[num_steps, topk, num_draft_tokens]; [0, 0, 0]: no speculation"
    )
    concurrency: Annotated[list[Positive], BeforeValidator(_json_list), Field(min_length=1)] = Field(
        [1, 4], description="requests in flight at once"
    )
    prompts: PathText = Field("", description="JSONL of requests to send")
    points: PathText = Field("", description="finished points to analyse; then no server is started")
    repeats: Positive = Field(3, description="measurements of each point")
    tokens_per_request: Positive = Field(64, description="tokens asked for per prompt")


class Verdict(Parameters):
    needs = demo = ("run_dir",)


MODELS: dict[str, type[Parameters]] = {
    "01_config_inspection": ConfigInspection,
    "02_manual_forward": ManualForward,
    "03_acceptance": Acceptance,
    "04_capture_diff": CaptureDiff,
    "05_throughput_sweep": ThroughputSweep,
    "06_verdict": Verdict,
}


def model_of(stem: str) -> type[Parameters]:
    """The parameters of the notebook ``stem``, such as ``"02_manual_forward"``."""
    if stem not in MODELS:
        raise InputError("notebook", repr(stem), "one of " + ", ".join(MODELS))
    return MODELS[stem]


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """``"the nearest known name is X"``, or all the names when none is near."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"use the nearest known name, {close[0]}" if close else "use one of " + ", ".join(known)


def validate(stem: str, given: Mapping[str, Any]) -> Parameters:
    """Checked parameters of the notebook ``stem``; ``InputError`` on an unknown or ill-typed one."""
    model = model_of(stem)
    known = list(model.model_fields)
    for name in given:
        if name not in known:
            raise InputError(
                f"parameter {name} of {stem}",
                "an unknown name",
                "a parameter of this notebook",
                nearest(str(name), known),
            )
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        place = "".join(f"[{step}]" for step in first["loc"][1:] if isinstance(step, int))
        said = first["msg"].removeprefix("Value error, ")
        expected = f"{type_name(model, name)} ({said[0].lower()}{said[1:]})"
        raise InputError(
            f"parameter {name}{place} of {stem}",
            repr(first["input"]),
            expected,
            f"{name} is: {model.model_fields[name].description}",
        ) from None


def path_names(model: type[Parameters]) -> list[str]:
    """The parameters of ``model`` that name a file or folder."""
    return [name for name, field in model.model_fields.items() if IsPath in field.metadata]


def type_name(model: type[Parameters], name: str) -> str:
    """The plain Python type that the parameters cell shows, such as ``list[int]``."""
    annotation = _plain(model.model_fields[name].annotation)
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def _plain(annotation: Any) -> Any:
    """Strip ``Annotated`` at every level; a ``Literal`` of strings is a ``str``."""
    inside = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _plain(inside[0])
    if inside and all(isinstance(choice, str) for choice in inside):
        return str
    return list[_plain(inside[0])] if inside else annotation


def render_parameters_cell(model: type[Parameters]) -> str:
    """The source of a notebook's ``parameters`` cell: one ``name: type = value  # help`` a line.

    No default holds an equals sign: papermill gives up on a line with a second one and then calls that parameter
    unknown (nteract/papermill 864).
    """
    lines = []
    for name, field in model.model_fields.items():
        value = json.dumps(field.default) if isinstance(field.default, str) else repr(field.default)
        lines.append(f"{name}: {type_name(model, name)} = {value}  # {field.description}")
    return "\n".join(lines)
