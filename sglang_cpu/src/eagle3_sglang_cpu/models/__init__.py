"""The two model classes that a Llama target with an EAGLE-3 draft needs.

``SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_sglang_cpu.models`` makes SGLang import these first and its full
registry only when another architecture is asked for, which saves several seconds at launch.
"""
