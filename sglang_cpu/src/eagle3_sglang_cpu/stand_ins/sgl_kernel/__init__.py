"""Stand-in for the CPU build of ``sgl_kernel``: the operators that SGLang 0.5.23 calls to serve a dense
Llama-family target with an EAGLE-3 draft, in plain PyTorch.

``attention``    the two attention operators, registered as ``torch.ops.sgl_kernel.*``
``tree``         building a draft tree and verifying it greedily
``bookkeeping``  which cache slot holds which token

Names and signatures are SGLang's (``sgl-kernel/csrc/cpu/spec.cpp``,
``srt/layers/attention/intel_amx_backend.py``); so is the spelling ``retrive``.
"""

from . import attention
from .bookkeeping import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

#: Tells the plugin that this is the stand-in and not a compiled build.
PURE_PYTORCH = True

__all__ = [
    "PURE_PYTORCH",
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "attention",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
