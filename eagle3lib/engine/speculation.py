"""The speculative settings a server really runs with, and what it refuses, from its launch line or its flags.

Notebook 03 compares with one setting: a report's own, else what was requested or is served.

Source: sgl-project/sglang srt/arg_groups/speculative_hook.py ``_handle_eagle_family`` and
``_auto_choose_speculative_params`` (0.5.23); srt/server_args.py ``_handle_speculative_decoding`` (0.5.9).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from eagle3lib.engine.capture_ids import Refusal, engine_version
from eagle3lib.errors import InputError
from eagle3lib.maths.trees import tree_nodes
from eagle3lib.reading.engine_reports import EngineReport
from eagle3lib.reading.launch import SETTING, SPECULATIVE, Launch
from eagle3lib.reading.setting import Setting
from eagle3lib.reading.target_config import TargetConfig


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


SETTING_FLAGS = tuple(map(_flag, SETTING))
EAGLE_FAMILY = ("EAGLE", "EAGLE3", "STANDALONE")
BUILTIN = (*EAGLE_FAMILY, "NEXTN", "NGRAM", "DFLASH", "DSPARK", "UNO")
_TREE_BACKENDS = {"0.5.9": ("flashinfer", "fa3"), "0.5.23": ("flashinfer", "fa3", "triton")}
#: Flags that came after 0.5.9: its parser refuses them.
NEWER_FLAGS = (
    "speculative_use_rejection_sampling", "speculative_use_block_verification", "speculative_draft_window_size",
    "speculative_draft_sink_size", "speculative_draft_kv_cache_dtype", "speculative_adaptive",
    "speculative_adaptive_config", "speculative_dsa_topk_backend", "speculative_enable_w4a4_mxfp4_megamoe",
)  # fmt: skip
#: Beginnings of flags that belong to other ways of drafting.
OTHERS = tuple(f"speculative_{name}_" for name in ("ngram", "dflash", "dspark", "domino"))
#: What an offline prediction assumes where neither parameters nor flags give a setting.
USUAL_STEPS = 3


@dataclass(frozen=True)
class Speculation:
    """Effective settings; None where nothing is given and nothing can be derived. ``changed``: why a value is not
    the one that was given."""

    algorithm: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    changed: dict[str, str] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()


def speculation(launch: Launch, target_architecture: str, version: str) -> Speculation:
    """The settings after the server's own changes."""
    given = launch.text("speculative_algorithm")
    if not launch or launch.program == "vllm":
        return Speculation()
    steps, topk, tokens = map(launch.integer, SETTING)
    if given is None and (is_command(launch) or (steps, topk, tokens) == (None, None, None)):
        return Speculation()
    algorithm = (given or "EAGLE3").upper()  # bare flags are read as meant for this draft
    changed: dict[str, str] = {}
    if algorithm == "NEXTN":
        algorithm, changed["algorithm"] = "EAGLE", "NEXTN is another name of EAGLE"
    if algorithm not in EAGLE_FAMILY:
        unknown = Refusal("algorithm", f"{algorithm} is no speculative algorithm of SGLang {version}")
        return Speculation(algorithm, steps, topk, tokens, changed, () if algorithm in BUILTIN else (unknown,))
    refusals = _refused_flags(launch, version)
    if launch.switch("speculative_adaptive") and topk in (None, 1):
        steps, topk = steps or 3, 1
        changed["num_steps"] = "--speculative-adaptive changes the steps with the batch size while it serves"
    elif steps is None and (topk is not None or tokens is not None):
        text = "without --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens"
        refusals.append(Refusal("steps", f"{text} must be absent too (an assertion fails)"))
    elif steps is None:
        tree = target_architecture in ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM")
        steps, topk, tokens = (5, 4, 8) if tree and algorithm != "STANDALONE" else (3, 1, 4)
        chosen = f"{steps}/{topk}/{tokens} for {target_architecture or 'this target'}"
        changed["num_steps"] = f"no setting was given: SGLang chooses {chosen}"
    elif topk is None:
        text = "--speculative-num-steps without --speculative-eagle-topk"
        refusals.append(Refusal("steps", f"{text}: the server compares None with a number and stops"))
    for name, value in (("--speculative-num-steps", steps), ("--speculative-eagle-topk", topk)):
        if value is not None and value < 1:
            refusals.append(Refusal("steps", f"{name} {value}: at least 1 is needed"))
    if topk == 1 and steps is not None and tokens != steps + 1:
        if tokens is not None:
            chain = f"{tokens} draft tokens become num_steps + 1 = {steps + 1}"
            changed["num_draft_tokens"] = f"--speculative-eagle-topk 1 makes a chain: {chain}"
        tokens = steps + 1
    if topk is not None and topk > 1 and steps is not None and steps > 0:
        refusals += _refused_tree(launch, steps, topk, tokens, version)
    return Speculation(algorithm, steps, topk, tokens, changed, tuple(refusals))


def is_command(launch: Launch) -> bool:
    """True for a whole command or a running server, False for some flags on their own."""
    return launch.source == "server_info" or bool(launch.program) or "model_path" in launch.flags


def _refused_flags(launch: Launch, version: str) -> list[Refusal]:
    """Flags that the engine's parser or its checks refuse."""
    names = [name for name in launch.flags if name.startswith("speculative_") and not name.startswith(OTHERS)]
    unknown = [name for name in names if name not in SPECULATIVE and launch.source == "line"]
    newer = [name for name in NEWER_FLAGS if name in launch.flags and version == "0.5.9"]
    found = [f"{_flag(name)} is no flag of SGLang" for name in unknown]
    found += [f"{_flag(name)} does not exist in SGLang 0.5.9" for name in newer]
    window = launch.integer("speculative_draft_window_size") if version != "0.5.9" else None
    if window is not None and window < 1:
        found.append(f"--speculative-draft-window-size {window}: at least 1 is needed")
    return [Refusal("flag", text) for text in found]


def _refused_tree(launch: Launch, steps: int, topk: int, tokens: int | None, version: str) -> Iterator[Refusal]:
    nodes = tree_nodes(steps, topk)
    if tokens is None:
        yield Refusal("steps", f"--speculative-eagle-topk {topk} needs --speculative-num-draft-tokens")
    elif tokens - 1 > nodes:
        tree = f"a tree of {steps} steps and topk {topk}, which has only {nodes} nodes"
        yield Refusal("steps", f"{tokens - 1} drafts are to be chosen from {tree}: torch.topk raises")
    elif tokens < 2:
        yield Refusal("steps", f"--speculative-num-draft-tokens {tokens} leaves no draft to verify")
    backends = [launch.text(k) for k in ("attention_backend", "decode_attention_backend", "prefill_attention_backend")]
    if "trtllm_mha" in backends:
        yield Refusal("backend", "the trtllm_mha attention backend takes topk 1 only")
    page = launch.integer("page_size") or 1
    if page > 1 and backends[0] and backends[0] not in _TREE_BACKENDS[version]:
        known = f"needs one of the attention backends {', '.join(_TREE_BACKENDS[version])}"
        yield Refusal("backend", f"topk {topk} with page size {page} {known}; {backends[0]} is asked for")
    if launch.switch("speculative_use_rejection_sampling"):
        yield Refusal("backend", f"--speculative-use-rejection-sampling takes topk 1 only, not {topk}")
    if version == "0.5.9" and launch.set_in_env("SGLANG_ENABLE_SPEC_V2"):
        yield Refusal("backend", f"SGLANG_ENABLE_SPEC_V2 takes topk 1 only in 0.5.9, not {topk}")


def requested_setting(
    launch: str, target: str | Path, engine: str, num_steps: int, topk: int, num_draft_tokens: int
) -> Setting:
    """The parameters (0: not given), else the launch flags after the server's own changes.

    A chain (topk 1) always verifies ``num_steps + 1`` tokens, whatever was requested.
    """
    architecture = TargetConfig.open(target).architecture if target else ""
    served = speculation(Launch.parse(launch), architecture, engine_version(engine)[0])
    steps = num_steps or served.num_steps
    branches = topk or served.topk or (1 if num_steps else None)
    tokens = num_draft_tokens or served.num_draft_tokens
    return Setting(steps, branches, steps + 1 if steps and branches == 1 else tokens)


def with_settings(reports: Sequence[EngineReport], requested: Setting, engine: str) -> list[EngineReport]:
    """Each report with the setting it was served under: that of its own flags where it has them."""

    def own(report: EngineReport) -> Setting:
        launch = Launch(MappingProxyType({}), report.flags, "server_info", "sglang")
        try:
            served = speculation(launch, "", engine_version(engine)[0])
        except InputError:  # flags that are no numbers
            return requested
        return Setting(served.num_steps, served.topk, served.num_draft_tokens) if served.num_steps else requested

    return [replace(report, setting=own(report) if report.flags else requested) for report in reports]


def common_setting(requested: Setting, reports: Sequence[EngineReport]) -> Setting:
    """``requested``, or where nothing was requested the one setting that all reports ran under."""
    ran = {report.setting for report in reports if not report.unreadable}
    return ran.pop() if requested == Setting() and len(ran) == 1 else requested


def assumed_setting(setting: Setting) -> Setting:
    """``setting`` with a chain of ``USUAL_STEPS`` in the place of what is not known."""
    steps = setting.num_steps or USUAL_STEPS
    return Setting(steps, setting.topk or 1, setting.num_draft_tokens or steps + 1)
