"""SGLang's Llama, by the attribute that its registry looks for."""

from sglang.srt.models.llama import LlamaForCausalLM

EntryClass = LlamaForCausalLM
