"""SGLang's EAGLE-3 draft, by the attribute that its registry looks for."""

from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3

EntryClass = LlamaForCausalLMEagle3
