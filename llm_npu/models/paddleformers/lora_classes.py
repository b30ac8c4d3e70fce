"""PaddleFormers' classes of LoRA. Importing it imports paddleformers."""

from paddleformers.peft import LoRAConfig, LoRAModel
from paddleformers.peft.lora import LoRALinear

__all__ = ["LoRAConfig", "LoRALinear", "LoRAModel", "tensor_parallel"]


def tensor_parallel(config) -> dict[str, int]:
    """The degree of tensor parallelism, as ``LoRAConfig`` takes it."""
    return {"tensor_model_parallel_size": config.tensor_model_parallel_size}
