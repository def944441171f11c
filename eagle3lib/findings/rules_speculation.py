"""Rules about the speculative settings: the algorithm, steps and tree size, what the server refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from eagle3lib.engine.speculation import SETTING_FLAGS, is_command, tree_nodes
from eagle3lib.findings.finding import Edit
from eagle3lib.findings.rule import Facts, Inspection, Rule, drop_flag
from eagle3lib.reading.launch import SETTING

_HOOK = "sgl-project/sglang srt/arg_groups/speculative_hook.py _handle_eagle_family"


def judged(i: Inspection) -> bool:
    """True when there are SGLang flags to judge."""
    return bool(i.launch) and i.launch.program != "vllm"


def _algorithm(i: Inspection) -> Iterator[Facts]:
    if not judged(i):
        return
    asked, algorithm = i.launch.text("speculative_algorithm"), i.served.speculation.algorithm
    edits = [Edit("launch", "--speculative-algorithm", "EAGLE3")]
    right = {"remedy": "Use --speculative-algorithm EAGLE3.", "edits": edits}
    if asked is None:
        meant = any(name.startswith("speculative_") for name in i.launch.flags)
        if is_command(i.launch):
            yield {
                **right,
                "severity": "error" if meant else "warning",
                "text": "no --speculative-algorithm" + (" beside other speculative flags" if meant else ""),
                "effect": "Speculation is off and the draft is never loaded.",
            }
    elif algorithm != "EAGLE3":
        effect = "The draft is not served as EAGLE-3, or the server stops."
        if algorithm == "EAGLE":
            effect = (
                "No states are captured, fc is skipped, d2t is not used and the target's head replaces the draft's: "
                "accept length 1.00 in most reports (1.25 for 1.47 on a small pair)."
            )
        yield {**right, "text": f"--speculative-algorithm {asked} with an EAGLE-3 draft", "effect": effect}
    else:
        flag = "--speculative-draft-model-path"
        path, model = i.launch.text("speculative_draft_model_path"), i.launch.text("model_path")
        same = path is not None and model is not None and PurePath(path) == PurePath(model)
        if path is None or same:
            yield {
                "severity": "error" if is_command(i.launch) else "note",
                "subject": flag,
                "text": f"{flag} {path} is the target itself" if same else f"{flag} is not given",
                "effect": "SGLang loads the target as the draft and stops (no hot_token_id or no set_embed).",
                "remedy": f"Give the draft's folder as {flag}.",
            }


def _steps(i: Inspection) -> Iterator[Facts]:
    if not judged(i):
        return
    asked = [i.launch.integer(name) for name in SETTING]
    shown = " ".join(f"{name} {value}" for name, value in zip(SETTING_FLAGS, asked, strict=True) if value is not None)
    spec = i.served.speculation
    effective = "/".join("?" if v is None else str(v) for v in (spec.num_steps, spec.topk, spec.num_draft_tokens))
    facts = {"shown": shown or "no settings", "effective": effective}
    refused = [r.text for r in spec.refusals if r.topic == "steps"]
    if refused:
        yield {**facts, "text": "; ".join(refused), "effect": "The server stops.", **_settings(3, 1, 4)}
    elif "num_draft_tokens" in spec.changed and asked[2] is not None:
        steps = spec.num_steps if spec.num_steps and spec.num_steps > 1 else 3
        more = asked[2] > (spec.num_steps or 0) + 1
        yield {
            **facts,
            "severity": "error" if more else "warning",
            "text": spec.changed["num_draft_tokens"],
            "effect": f"At most {(spec.num_steps or 0) + 1} tokens a verify step, not {asked[2]}.",
            **_settings(steps, 1, steps + 1),
        }
    elif spec.topk and spec.topk > 1 and spec.num_steps and (spec.num_draft_tokens or 99) < spec.num_steps + 1:
        yield {
            **facts,
            "severity": "warning",
            "text": f"a tree of {spec.num_steps} steps ({tree_nodes(spec.num_steps, spec.topk)} nodes) is cut to "
            f"{spec.num_draft_tokens - 1} drafts",
            "effect": "The deepest drafts are computed and can never be accepted.",
            **_settings(spec.num_steps, spec.topk, 2 * (spec.num_steps + 1)),
        }
    elif i.launch.switch("speculative_adaptive"):
        yield {
            **facts,
            "severity": "note",
            "text": "--speculative-adaptive is on",
            "effect": "The number of steps, and with it the highest accept length, changes with the load.",
            "remedy": "Turn it off while measuring.",
        }


def _settings(steps: int, topk: int, tokens: int) -> Facts:
    values = dict(zip(SETTING_FLAGS, (steps, topk, tokens), strict=True))
    words = f"a chain of {steps}" if topk == 1 else "a tree that holds its deepest path"
    if (steps, topk, tokens) == (3, 1, 4):
        words = "a chain of three, the usual start"
    flags = " ".join(f"{name} {value}" for name, value in values.items())
    return {
        "remedy": f"Use {flags} ({words}); notebook 05 measures which length pays.",
        "edits": [Edit("launch", name, value) for name, value in values.items()],
    }


def _refused(i: Inspection) -> Iterator[Facts]:
    for crash in i.served.crashes:
        if crash.topic in ("backend", "flag"):
            flag = next((word for word in crash.text.split() if word.startswith("--")), "--attention-backend")
            drop = crash.topic == "flag" or "rejection" in flag
            other = {"remedy": "Use --speculative-eagle-topk 1, page size 1 or another backend."}
            yield {"subject": flag, "text": crash.text, **(drop_flag(flag) if drop else other)}


RULES = (
    Rule("flags.algorithm", "error", "--speculative-algorithm", _algorithm,
         evidence="{text}.",
         consequence="{effect}",
         source=_HOOK),
    Rule("flags.steps_tokens", "error", "--speculative-num-draft-tokens", _steps,
         evidence="Asked: {shown}. {text}. Effective: {effective}.",
         consequence="{effect}",
         source=_HOOK),
    Rule("flags.backend", "error", "launch", _refused,
         evidence="{text}.",
         consequence="The server stops at start.",
         source=_HOOK),
)  # fmt: skip
