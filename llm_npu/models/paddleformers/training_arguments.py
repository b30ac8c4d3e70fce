"""PaddleFormers' training arguments, with PaddleNLP's names of degrees. It imports paddleformers."""

import operator
from collections.abc import Mapping

from paddleformers.trainer import TrainingArguments as Upstream
from paddleformers.transformers.configuration_utils import LlmMetaConfig
from paddleformers.transformers.configuration_utils import llmmetaclass as with_fields_of_models

__all__ = ["TrainingArguments", "copy_to", "translated", "with_fields_of_models"]

# The attributes of LlmMetaConfig that arguments decide. The others are those of the model itself.
DECIDED = ("hybrid_parallel_attributes", "recompute_attributes", "loss_attributes")


class TrainingArguments(Upstream):
    """PaddleFormers' ``TrainingArguments``; the rest of this project reads the degrees by these names."""

    tensor_parallel_degree = property(operator.attrgetter("tensor_model_parallel_size"))
    pipeline_parallel_degree = property(operator.attrgetter("pipeline_model_parallel_size"))
    sharding_parallel_degree = property(operator.attrgetter("sharding_parallel_size"))
    data_parallel_degree = property(operator.attrgetter("data_parallel_size"))
    virtual_pp_degree = property(operator.attrgetter("virtual_pipeline_model_parallel_size"))
    recompute = property(operator.attrgetter("recompute_granularity"))

    def __post_init__(self):
        super().__post_init__()
        if self.pipeline_parallel_degree > 1:  # evaluation, too, takes all micro batches of a step at once
            self.per_device_eval_batch_size *= self.gradient_accumulation_steps


def translated(values: Mapping[str, object]) -> dict[str, object]:
    """Training arguments that follow from the values of flags."""
    found: dict[str, object] = {
        "split_param": False,  # of sharding; with it, float32 gradients are compulsory
        "recompute_granularity": None,
        # Its own checkpoints, which it would look for on resume.
        "save_checkpoint_format": None,
        "load_checkpoint_format": None,
    }
    if values["recompute"]:  # of every decoder layer by itself
        found |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if values["pipeline_parallel_degree"] > 1:  # anything else is an error
        found["per_device_eval_batch_size"] = values["per_device_train_batch_size"]
    return found


def copy_to(config, arguments: TrainingArguments) -> None:
    """Set the fields of a model's configuration that the arguments decide."""
    for attributes in DECIDED:
        for name, _, default, _ in getattr(LlmMetaConfig, attributes):
            setattr(config, name, getattr(arguments, name, default))
    if hasattr(config, "moe_group"):
        # Tensor parallelism spreads the experts; without it, stages refuse this group.
        config.moe_group = "mp" if arguments.tensor_parallel_degree > 1 else "dummy"
