"""PaddleNLP's model for a run, of its family: random weights, or those of a local directory."""

from __future__ import annotations

from pathlib import Path

import paddle
from paddlenlp.trainer.trainer_utils import set_seed

from llm_npu import families, lora, weights
from llm_npu.config import RunConfig


def build(run: RunConfig, config, tokenizer):
    """``LlamaForCausalLM``, ``Qwen2ForCausalLM``, ... of ``config`` in fp32, on the run's device.

    The trainer casts it. Its configuration, which is stored with the weights, gets the ids of the special
    tokens of ``tokenizer``. Random weights depend on ``--seed`` alone.
    ValueError when the weights of the directory ``--model_name_or_path`` do not fit, and when Paddle's device
    is not the one that was asked for. With ``--finetuning_type lora`` it comes wrapped (``llm_npu.lora``).
    """
    asked, found = run.training.device, paddle.device.get_device()
    if found.partition(":")[0] != asked.partition(":")[0]:  # PaddleNLP goes on without a word
        raise ValueError(
            f"--device {run.device} was asked for, but Paddle runs on {found}; check the plugin."
        )
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, getattr(tokenizer, name))
    set_seed(run.training.seed)
    model = families.new_model(config)
    if run.model.continue_training:
        weights.load(model, run.model.model_name_or_path)
    return lora.wrap(model, run.model) if run.model.finetuning_type == "lora" else model


def save_weights(model, folder: str | Path) -> None:
    """Write the weights that ``model`` trains: all of them, or those of its LoRA."""
    (lora if isinstance(model, lora.LoRAModel) else weights).save(model, folder)


def load_weights(model, folder: str | Path) -> None:
    """Set them from a checkpoint. ValueError as ``weights.load`` and ``lora.load``."""
    (lora if isinstance(model, lora.LoRAModel) else weights).load(model, folder)
