"""The interface to PaddleFormers: arguments, LoRA classes, hooks. Importing it imports paddleformers.

The patches are applied first: the library's modules import what they provide.
"""

# ruff: noqa: E402
from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from types import SimpleNamespace

import paddle

from llm_npu.patches import paddleformers as patches

patches.apply()

from paddleformers.data.causal_dataset import get_train_valid_test_split_ as documents_of_parts
from paddleformers.nn.criterion import CriterionLayer
from paddleformers.peft import LoRAConfig, LoRAModel
from paddleformers.peft.lora import LoRALinear
from paddleformers.trainer import TrainingArguments as Upstream
from paddleformers.transformers.configuration_utils import LlmMetaConfig
from paddleformers.transformers.configuration_utils import llmmetaclass as with_fields_of_models
from paddleformers.transformers.utils import InitTrackerMeta

__all__ = ["InitTrackerMeta", "LoRAConfig", "LoRALinear", "LoRAModel", "TrainingArguments"]
__all__ += ["copy_to", "documents_of_parts", "draw_weights", "preference_criterion"]
__all__ += ["translated", "with_fields_of_models"]

# Attributes of LlmMetaConfig that are set by arguments; the others belong to the model.
DECIDED = ("hybrid_parallel_attributes", "recompute_attributes", "loss_attributes")


class TrainingArguments(Upstream):
    """PaddleFormers' ``TrainingArguments``; with the names of degrees used in this project."""

    tensor_parallel_degree = property(operator.attrgetter("tensor_model_parallel_size"))
    pipeline_parallel_degree = property(operator.attrgetter("pipeline_model_parallel_size"))
    sharding_parallel_degree = property(operator.attrgetter("sharding_parallel_size"))
    data_parallel_degree = property(operator.attrgetter("data_parallel_size"))
    sep_parallel_degree = property(operator.attrgetter("sep_parallel_size"))
    virtual_pp_degree = property(operator.attrgetter("virtual_pipeline_model_parallel_size"))
    recompute = property(operator.attrgetter("recompute_granularity"))

    def __post_init__(self):
        super().__post_init__()
        if self.pipeline_parallel_degree > 1:  # evaluation also takes all micro batches of a step at once
            self.per_device_eval_batch_size *= self.gradient_accumulation_steps


def translated(values: Mapping[str, object]) -> dict[str, object]:
    """Training arguments that follow from the values of flags."""
    arguments: dict[str, object] = {
        "split_param": False,  # for sharding; it would require float32 gradients
        "recompute_granularity": None,
        # The library's own checkpoints, which it would look for on resume.
        "save_checkpoint_format": None,
        "load_checkpoint_format": None,
    }
    if values["recompute"]:  # every decoder layer separately
        arguments |= {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    if values["pipeline_parallel_degree"] > 1:  # any other value is an error
        arguments["per_device_eval_batch_size"] = values["per_device_train_batch_size"]
    return arguments


def copy_to(config, arguments: TrainingArguments) -> None:
    """Set the fields of a model's configuration that the arguments determine."""
    for attributes in DECIDED:
        for name, _, default, _ in getattr(LlmMetaConfig, attributes):
            setattr(config, name, getattr(arguments, name, default))
    if hasattr(config, "moe_group"):
        # Tensor parallelism splits the experts; without it, pipeline stages reject this group.
        config.moe_group = "mp" if arguments.tensor_parallel_degree > 1 else "dummy"


def draw_weights(model) -> None:
    """Draw every matrix of ``model`` from a normal distribution with deviation ``initializer_range``.

    PaddleFormers 1.2 ignores that field: its matrices use Xavier initialization, and the output layer a
    multiple of it, so a new model's loss starts above that of a uniform guess.
    """
    normal = paddle.nn.initializer.Normal(0.0, model.config.initializer_range)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and name.endswith("weight"):
            normal(parameter)


def preference_criterion(config, loss: str, beta: float, label_smoothing: float) -> CriterionLayer:
    """PaddleFormers' DPO loss for logits of a model of ``config``, which is not modified.

    ``preference_criterion(...)(logits, (labels, responses, reference_chosen, reference_rejected))``, with
    logits [1, T, V], labels [1, T] (-100 outside of the answers) and int responses [pairs, 4] as in
    `llm_npu.data.collate.PairCollator`, returns the log-probabilities [pairs] of the chosen and the rejected
    answers, two parts of the loss, and the loss. Without references it returns only the log-probabilities.
    """
    config = copy.copy(config)
    config.dpo_config = SimpleNamespace(
        loss_type=loss,
        beta=beta,
        label_smoothing=label_smoothing,
        pref_loss_ratio=1.0,
        sft_loss_ratio=0.0,
        offset_alpha=0.0,
        normalize_logps=False,
        ignore_eos_token=False,
    )
    config.use_filtered_label_loss = True  # float32 logits only for answers
    config.use_fused_head_and_loss_fn = False
    config.loss_subbatch_sequence_length = -1
    return CriterionLayer(config, loss_type="dpo")
