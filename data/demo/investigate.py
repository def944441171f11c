"""`make demo`: investigate one draft four times, on this machine, against a real SGLang server.

    python data/demo/investigate.py [options of `python -m eagle3lib run`]

The target comes from a registry package, the draft from ``data/demo/draft``. The incident is the same draft with
another config (``data/demo/incident/config.json``) and other flags; no second model is shipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import target

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INCIDENT = ROOT / ".cache" / "incident-draft"


def main() -> int:
    os.chdir(ROOT)  # the plan's paths start here
    target.ensure()
    shutil.rmtree(INCIDENT, ignore_errors=True)
    shutil.copytree(HERE / "draft", INCIDENT)
    shutil.copy(HERE / "incident" / "config.json", INCIDENT)
    # One thread a process: two runs at once have the two cores busy, and threads that wait for each other crawl.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plan = [sys.executable, "-m", "eagle3lib", "run", str(HERE / "plan.yaml"), "--jobs", "2", *sys.argv[1:]]
    batch = subprocess.Popen(plan)
    while True:
        try:
            code = batch.wait()
            break
        except KeyboardInterrupt:  # the batch had it too, and stops what it started: let it
            continue
    sys.stdout.write(f"\nThe investigations: {ROOT / 'papermill_runs' / 'demo' / 'index.html'}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
