"""Does the engine accept what the offline prediction says, verify step for verify step?

    python benchmarks/fidelity.py [--prompts 40] [--tokens 96] [--rows healthy/3/1/4 bf16/3/4/8 incident/3/1/4 ...]

Serves the demo's pair with real SGLang, one request at a time so that the order of steps is seen in the stream, and
predicts the same requests from the draft alone, in fp32 whatever the server computes in. ``healthy`` and ``incident``
(other boundaries than trained) are served in fp32, ``bf16`` is the healthy draft served in bfloat16. Every step that
differs is listed with the gap that decided it: between the two best logits of a chain, between log scores of a tree.
Draft tokens a second count what is proposed: of the prediction alone, and of the engine with its target.
The last line of output is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import yaml

from eagle3lib.engine.client import save_responses
from eagle3lib.engine.server import Server
from eagle3lib.engine.speculation import with_settings
from eagle3lib.engine.sweep import setting_launch
from eagle3lib.findings.config_rules import inspect
from eagle3lib.maths.draft import Draft, forward
from eagle3lib.maths.target import Target
from eagle3lib.maths.trees import build_tree
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.acceptance import from_report
from eagle3lib.measuring.prediction import predict
from eagle3lib.measuring.sample_states import SampleStates, StatesDataset
from eagle3lib.measuring.served import predict_reports
from eagle3lib.reading.engine_reports import read_engine_reports
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.prompts import Prompt, read_prompts
from eagle3lib.reading.samples import read_samples
from eagle3lib.reading.setting import Setting

DEMO = Path(__file__).resolve().parents[1] / "data" / "demo"
sys.path.insert(0, str(DEMO))
SETTINGS = ("1/1/2", "3/1/4", "5/1/6", "3/4/8", "5/8/16")
ROWS = [*(f"healthy/{setting}" for setting in SETTINGS), "bf16/3/1/4", "bf16/3/4/8", "incident/3/1/4", "incident/3/4/8"]


def measure(row: str, prompts: list[Prompt], tokens: int, folder: Path, target: str) -> tuple[dict, list[str]]:
    """One row of the table: serve, predict, compare; and what differs, in words."""
    setup, words = row.split("/", 1)
    num_steps, topk, budget = (int(part) for part in words.split("/"))
    setting = Setting(num_steps, topk, budget)
    draft = Path(shutil.copytree(DEMO / "draft", folder / "draft"))
    if setup == "incident":
        shutil.copy(DEMO / "incident" / "config.json", draft / "config.json")
    launch = Launch.parse(yaml.safe_load((DEMO / "plan.yaml").read_text())["runs"][0]["parameters"]["launch"])
    launch = setting_launch(launch, setting)
    if setup == "bf16":
        launch = Launch.parse(launch.render({"--dtype": "bfloat16"}))
    with Server.start(launch, target, draft, log_path=folder / "server.log") as server:
        started = time.perf_counter()
        save_responses(server.generate(prompts, max_new_tokens=tokens), folder / "served" / "responses.jsonl")
        serving = time.perf_counter() - started
    reports = with_settings(read_engine_reports(folder / "served"), setting, "")
    opened = Target.open(target, cache=folder.parent / "states")
    wiring = inspect(draft, target, launch.render({})).runnable_wiring
    loaded = Draft.load(draft, opened.embedding)
    (found,) = predict_reports(reports, loaded, wiring, opened)
    served = from_report(reports[0])

    samples = read_samples(folder / "served" / "responses.jsonl")
    dataset = list(StatesDataset(samples, opened, wiring.boundaries))
    started = time.perf_counter()
    predictions = [predict(loaded, wiring, sample_states, setting) for sample_states in dataset]
    predicting = time.perf_counter() - started
    proposed = (sum(len(each.runs) for each in predictions) * (budget - 1), (served.verify_steps or 0) * (budget - 1))
    speeds = [count / seconds for count, seconds in zip(proposed, (predicting, serving), strict=True)]
    differing = [
        f"request {request}, start {start}: predicted {predicted}, served {accepted}, "
        f"gap {gap(loaded, wiring, dataset[request], setting, start, min(predicted, accepted)):.2g}"
        for request, start, predicted, accepted in map(dict.values, found.agreement.mismatches)
    ]
    return {
        "setting": row,
        "boundaries": list(wiring.boundaries),
        "steps": found.agreement.steps,
        "equal": found.agreement.equal,
        "ordered": found.agreement.ordered_steps,
        "left_out": found.agreement.left_out,
        "predicted_accept_length": found.acceptance.accept_length.value,
        "served_accept_length": served.accept_length.value,
        "draft_tokens_per_second": {"predicted": speeds[0], "served": speeds[1], "ratio": speeds[0] / speeds[1]},
    }, differing


def gap(
    draft: Draft, wiring: Wiring, sample_states: SampleStates, setting: Setting, start: int, accepted: int
) -> float:
    """How close the decision was that a served step took otherwise, after ``accepted`` drafts."""
    states, ids = sample_states.stack(wiring.boundaries), sample_states.sample.input_ids
    first = sample_states.sample.prompt_tokens - 1
    if setting[1] == 1:
        return float(forward(draft, wiring, states, ids, setting[0], first).margins[accepted, start])
    return float(build_tree(draft, wiring, states, ids, setting, first).margins[start])


def main() -> None:
    import target

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="SETUP/STEPS/TOPK/TOKENS")
    options = parser.parse_args()
    model = str(target.ensure())
    prompts = read_prompts(DEMO / "prompts.jsonl", model)[: options.prompts]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for row in options.rows:
            found, differing = measure(row, prompts, options.tokens, Path(name) / row.replace("/", "_"), model)
            rows.append(found)
            print(" ".join(f"{key} {value}" for key, value in found.items()), *differing, sep="\n  ", flush=True)
    print(json.dumps({"settings": rows}))


if __name__ == "__main__":
    main()
