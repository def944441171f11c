"""Does the engine accept what the offline prediction says, verify step for verify step?

    python benchmarks/fidelity.py [--prompts 40] [--tokens 96] [--settings 1/1/2 3/1/4 5/1/6] [--ids -1 2 15]

Serves the demo's pair with real SGLang in fp32, one request at a time so that the order of steps is seen in the
stream, and predicts the same requests from the draft alone. Chains only: trees are not predicted yet. The last line
of output is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import yaml

from eagle3lib.engine.client import save_responses
from eagle3lib.engine.server import Server
from eagle3lib.engine.sweep import setting_launch
from eagle3lib.findings.config_rules import inspect
from eagle3lib.maths.draft import Draft
from eagle3lib.maths.target_states import TargetTensors
from eagle3lib.measuring.acceptance import from_report
from eagle3lib.measuring.served import forecast_served
from eagle3lib.reading.engine_reports import read_engine_reports
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.prompts import read_prompts

DEMO = Path(__file__).resolve().parents[1] / "data" / "demo"
sys.path.insert(0, str(DEMO))


def measure(setting: tuple[int, int, int], draft: Path, prompts: list, tokens: int, folder: Path, target: str) -> dict:
    """One setting: serve, predict, compare."""
    plan = yaml.safe_load((DEMO / "plan.yaml").read_text())["runs"]
    launch = setting_launch(Launch.parse(plan[0]["parameters"]["launch"]), setting)
    with Server.start(launch, target, draft, log_path=folder / "server.log") as server:
        save_responses(server.ask(prompts, max_new_tokens=tokens), folder / "served" / "responses.jsonl")
    reports, tensors = read_engine_reports(folder / "served"), TargetTensors.load(target)
    wiring = inspect(draft, target, launch.render({})).runnable_wiring
    (found,) = forecast_served(
        reports, folder / "served", Draft.load(draft, tensors.embedding), wiring, target, tensors,
        folder.parent / "states", setting,
    )  # fmt: skip
    served = from_report(reports[0], num_steps=setting[0])
    return {
        "setting": "/".join(map(str, setting)),
        "boundaries": list(wiring.boundaries),
        "steps": found.agreement.steps,
        "equal": found.agreement.equal,
        "ordered": found.agreement.ordered_steps,
        "left_out": found.agreement.left_out,
        "predicted_accept_length": found.acceptance.accept_length.value,
        "served_accept_length": served.accept_length.value,
    }


def main() -> None:
    import target

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--settings", nargs="+", default=["1/1/2", "3/1/4", "5/1/6"])
    parser.add_argument("--ids", nargs="+", type=int, help="other layer ids than the draft was trained with")
    options = parser.parse_args()
    model = str(target.ensure())
    prompts = read_prompts(DEMO / "prompts.jsonl", model)[: options.prompts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draft = Path(shutil.copytree(DEMO / "draft", folder / "draft"))
        if options.ids:
            config = json.loads((draft / "config.json").read_text())
            config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = options.ids
            (draft / "config.json").write_text(json.dumps(config))
        rows = []
        for place, words in enumerate(options.settings):
            setting = tuple(int(part) for part in words.split("/"))
            rows.append(measure(setting, draft, prompts, options.tokens, folder / str(place), model))
            print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    print(json.dumps({"settings": rows}))


if __name__ == "__main__":
    main()
