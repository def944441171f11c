"""The parameters of each notebook: one strict model a notebook, the single source of names, types, help and needs.

The ``parameters`` cell of a notebook is rendered from its model (``render_parameters_cell``) and a test keeps
the two equal. Values come from that cell, from papermill's ``-p`` (which passes lists as text) or from a plan
(where YAML reads ``1e-5`` as text), so text is accepted wherever it can be read without guessing.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from eagle3lib.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


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


def validate(stem: str, given: Mapping[str, Any]) -> Parameters:
    """Checked parameters of the notebook ``stem``; ``InputError`` on an unknown or ill-typed one."""
    model = model_of(stem)
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        refused, name = input_error(error, f"{stem}: parameter ", model.model_fields), error.errors()[0]["loc"][0]
        if name not in model.model_fields:
            raise refused from None
        expected, meaning = f"{type_name(model, name)} ({refused.expected})", model.model_fields[name].description
        raise InputError(refused.where, refused.found, expected, f"{name} is: {meaning}") from None


def input_error(error: ValidationError, where: str, known: Iterable[str] = ()) -> InputError:
    """The first thing that pydantic refused; its place, such as ``grid[0]``, is put behind ``where``.

    ``known``: the names of all fields, of which the nearest to an unknown one is proposed. An ``InputError`` that a
    validator raised keeps its own words.
    """
    first = error.errors(include_url=False)[0]
    own = first.get("ctx", {}).get("error")
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).lstrip(".")
    if isinstance(own, InputError):
        return InputError(where + (place or own.where), own.found, own.expected, own.cure)
    if first["type"] == "extra_forbidden":
        return InputError(where + place, "an unknown name", "a known one", nearest(str(first["loc"][-1]), known))
    if first["type"] == "missing":
        return InputError(where + place, f"no {first['loc'][-1]}", "this key, which is required")
    expected = first["msg"].removeprefix("Value error, ")
    return InputError((where + place).removesuffix(": "), repr(first["input"])[:80], expected[0].lower() + expected[1:])


def nearest(name: str, known: Iterable[str]) -> str:
    """``"use the nearest known name, X"``, or all the names when none is near."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"use the nearest known name, {close[0]}" if close else "use one of " + ", ".join(names)


def path_names(model: type[Parameters]) -> list[str]:
    """The parameters of ``model`` that name a file or folder."""
    return [name for name, field in model.model_fields.items() if IsPath in field.metadata]


def type_name(model: type[Parameters], name: str) -> str:
    """The plain Python type that the parameters cell shows, such as ``list[int]``."""
    hint = get_type_hints(model)[name]  # without what ``Annotated`` adds, at every level
    if get_origin(hint) is Literal:
        return "str"
    return str(hint) if get_args(hint) else hint.__name__


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


class NotFilledIn(InputError):
    """A notebook without what it needs. Headless one sentence; in JupyterLab also ``lines`` to paste."""

    def __init__(self, stem: str, empty: Sequence[str], needs: str, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        found = f"{_listed(empty)} empty"
        super().__init__(f"parameters of {stem}", found, needs, "fill in the notebook's first cell")

    def _render_traceback_(self) -> list[str]:
        demo = ("The demo's values, to be put at the end of that cell:", *self.lines) if self.lines else ()
        return ["Fill in the first cell, then run from the top.", str(self), *demo]


def check_filled_in(stem: str, parameters: Parameters) -> None:
    """Raises ``NotFilledIn`` unless one of the sets of parameters that ``stem`` can work with is given whole."""
    model = model_of(stem)
    ways = [names.split() for names in model.needs]
    needed = [name for name in model.model_fields if any(name in names for names in ways)]
    empty = [name for name in needed if not getattr(parameters, name)]
    if not any(set(names).isdisjoint(empty) for names in ways):
        # Beside somebody's own files those of the demo would fit nothing.
        lines = demo_lines(stem) if empty == needed else ()
        raise NotFilledIn(stem, empty, ", or ".join(map(_listed, ways)), lines)


def demo_lines(stem: str) -> list[str]:
    """``name = value`` for what the demo gives notebook ``stem``; none where the demo is not beside us."""
    import yaml

    try:
        plan = yaml.safe_load((ROOT / "data" / "demo" / "plan.yaml").read_text(encoding="utf-8"))
    except OSError:
        return []
    model, first = MODELS[stem], plan["runs"][0]
    values = plan["defaults"] | first["parameters"] | {"run_dir": f"{plan['out']}/{first['name']}"}
    values |= {name: str(ROOT / values[name]) for name in path_names(model) if name in values}
    for folder in (".cache", "data"):  # a notebook's own folder is where its relative paths start
        values["launch"] = values["launch"].replace(f" {folder}/", f" {ROOT}/{folder}/")
    lines = [f"{name} = {json.dumps(values[name])}" for name in model.demo]
    missing = [name for name in path_names(model) if name in model.demo and not Path(values[name]).exists()]
    return [*lines, f"# `make demo` makes {_listed(missing)}"] if missing else lines


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
