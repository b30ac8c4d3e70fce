"""The interface to PaddleNLP: arguments, LoRA classes, hooks. Importing it imports paddlenlp."""

from __future__ import annotations

from collections.abc import Mapping

from paddlenlp.data.causal_dataset import get_train_valid_test_split_ as documents_of_parts
from paddlenlp.peft import LoRAConfig, LoRAModel
from paddlenlp.peft.lora import LoRALinear
from paddlenlp.trainer import TrainingArguments
from paddlenlp.transformers.configuration_utils import LlmMetaConfig
from paddlenlp.transformers.configuration_utils import llmmetaclass as with_fields_of_models
from paddlenlp.transformers.utils import InitTrackerMeta

__all__ = ["InitTrackerMeta", "LoRAConfig", "LoRALinear", "LoRAModel", "TrainingArguments"]
__all__ += [
    "copy_to",
    "documents_of_parts",
    "draw_weights",
    "translated",
    "with_fields_of_models",
]


def translated(values: Mapping[str, object]) -> dict[str, object]:
    """Training arguments that follow from the values of flags; PaddleNLP has an argument for each flag."""
    return {}


def copy_to(config, arguments: TrainingArguments) -> None:
    """Set the fields of a model's configuration that the arguments determine."""
    LlmMetaConfig.set_llm_config(config, arguments)


def draw_weights(model) -> None:
    """Do nothing: PaddleNLP's classes initialize weights from the configuration."""
