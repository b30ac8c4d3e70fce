"""PaddleNLP's classes of LoRA. Importing it imports paddlenlp."""

from paddlenlp.peft import LoRAConfig, LoRAModel
from paddlenlp.peft.lora import LoRALinear

__all__ = ["LoRAConfig", "LoRALinear", "LoRAModel"]
