"""PaddleFormers' classes of LoRA. Importing it imports paddleformers."""

from paddleformers.peft import LoRAConfig, LoRAModel
from paddleformers.peft.lora import LoRALinear

__all__ = ["LoRAConfig", "LoRALinear", "LoRAModel"]
