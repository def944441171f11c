"""With what a run was made: packages, platform, commit, digests. Never by whom or where."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

PACKAGES = ("eagle3lib", "torch", "transformers", "sglang", "safetensors", "numpy", "scipy", "papermill", "matplotlib")
_CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json", "eagle_config.json")
_SMALL = 8 << 20  # bytes: digests are of configs, not of weights


def provenance(folders: Mapping[str, str]) -> dict[str, Any]:
    """``folders``: role (``draft``, ``target``) -> model folder or ``""``."""
    return {
        "packages": {name: next((found.version for found in distributions(name=name)), None) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "gpus": _lines("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        "commit": _commit(),
        "files": config_digests(folders),
    }


def config_digests(folders: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of the small config files, named ``role/file``."""
    paths = {
        f"{role}/{name}": Path(folder).expanduser() / name
        for role, folder in folders.items()
        if folder
        for name in _CONFIGS
    }
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in paths.items()
        if path.is_file() and path.stat().st_size < _SMALL
    }


def _commit() -> str | None:
    """The commit of this library's own checkout, ``+`` appended where files differ from it."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    head = _lines("git", "-C", str(root), "rev-parse", "HEAD")
    changed = _lines("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return head[0] + ("+" if changed else "") if head else None


def _lines(*command: str) -> list[str]:
    """Output lines of a helper program; none where it is absent or fails."""
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
