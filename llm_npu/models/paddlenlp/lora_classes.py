"""PaddleNLP's classes of LoRA. Importing it imports paddlenlp."""

from paddlenlp.peft import LoRAConfig, LoRAModel
from paddlenlp.peft.lora import LoRALinear

__all__ = ["LoRAConfig", "LoRALinear", "LoRAModel", "tensor_parallel"]


def tensor_parallel(config) -> dict[str, int]:
    """The degree of tensor parallelism, as ``LoRAConfig`` takes it."""
    return {"tensor_parallel_degree": config.tensor_parallel_degree}
