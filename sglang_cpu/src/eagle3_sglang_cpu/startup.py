"""Run by ``eagle3_sglang_cpu.pth`` when Python starts: offers the stand-ins to SGLang's CPU processes alone.

A plugin would come too late: SGLang imports ``sgl_kernel`` and ``torchvision`` before it loads plugins. The
folder goes to the end of the path, so that a real ``sgl_kernel`` or ``torchvision`` is always preferred.
"""

import os
import sys

# The variable and the value by which SGLang itself decides (sglang.srt.utils.common.is_cpu).
if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    sys.path.append(os.path.join(os.path.dirname(__file__), "stand_ins"))
