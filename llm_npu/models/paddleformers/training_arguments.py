"""PaddleFormers's training arguments, and those that its models read. Importing it imports paddleformers."""

from paddleformers.trainer import TrainingArguments
from paddleformers.transformers.configuration_utils import LlmMetaConfig
from paddleformers.transformers.configuration_utils import llmmetaclass as with_fields_of_models

__all__ = ["TrainingArguments", "copy_to", "with_fields_of_models"]


def copy_to(config, arguments: TrainingArguments) -> None:
    """Set the fields of a model's configuration that the arguments decide."""
    LlmMetaConfig.set_llm_config(config, arguments)
