"""PaddleNLP's training arguments, and those that its models read. Importing it imports paddlenlp."""

from collections.abc import Mapping

from paddlenlp.trainer import TrainingArguments
from paddlenlp.transformers.configuration_utils import LlmMetaConfig
from paddlenlp.transformers.configuration_utils import llmmetaclass as with_fields_of_models

__all__ = ["TrainingArguments", "copy_to", "translated", "with_fields_of_models"]


def translated(values: Mapping[str, object]) -> dict[str, object]:
    """Training arguments that follow from the values of flags; PaddleNLP has an argument for each flag."""
    return {}


def copy_to(config, arguments: TrainingArguments) -> None:
    """Set the fields of a model's configuration that the arguments decide."""
    LlmMetaConfig.set_llm_config(config, arguments)
