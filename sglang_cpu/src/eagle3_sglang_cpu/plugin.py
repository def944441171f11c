"""The plugin that SGLang finds through its entry-point group ``sglang.srt.plugins``."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any


def activate() -> None:
    """Prepare SGLang for this package's ``sgl_kernel``; without it, or off the CPU path, do nothing.

    - Keeps ``--attention-backend intel_amx`` on a CPU without AMX tiles. SGLang would fall back to
      ``torch_native``, which refuses EAGLE. The fallback reads ``get_platform().has_amx``
      (``srt/arg_groups/overrides.py``); layers ask ``cpu_has_amx_support()`` instead, which stays false, so
      that they keep to ``forward_native``.
    - Lets the worker processes be forked, so that they need not import SGLang once more each.
    """
    from sglang.srt.utils import is_cpu

    if not is_cpu():
        return
    import sgl_kernel

    if not getattr(sgl_kernel, "PURE_PYTORCH", False):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.runtime_context import override_platform

    override_platform(has_amx=True).install()
    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", fork_workers, HookType.AFTER)


def fork_workers(result: Any, *args: Any, **kwargs: Any) -> None:
    """After SGLang has chosen "spawn": choose "fork", but only where it is safe, in a process of a single
    thread.

    Spawning is for CUDA's sake. A locked mutex of another thread would stay locked in a forked child; with
    one thread there is none. Native threads count too, which is why the kernel is asked.
    """
    threads = Path("/proc/self/task")
    if threads.is_dir() and len(list(threads.iterdir())) == 1:
        multiprocessing.set_start_method("fork", force=True)
