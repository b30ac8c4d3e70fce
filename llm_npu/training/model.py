"""Builds the model of a run: the library's class for its family, with random or loaded weights."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import paddle

from llm_npu.config import RunConfig, check_model
from llm_npu.core import atomic, ranks
from llm_npu.core.console import mib
from llm_npu.core.errors import UserError, caused_by_the_user
from llm_npu.models import degrees, ends, families, logits, lora, own_experts, presets, stored, weights
from llm_npu.models.library import adapter, names

LOSS_SWITCH = "use_fused_linear_cross_entropy"
MEMORY_LIMIT = "VIRTUAL_NPU_MEMORY_GB"


def config_for(run):
    """The ``LlamaConfig``, ``Qwen2Config``, ... of a ``RunConfig``, with the run's sequence length.

    The library's own fused paths stay off: ``llm_npu.surgery`` inserts the fused operators.

    Raises:
        UserError: As ``presets.model_config``; the family is not ``--model_type``; or the model does not
            support the run (``config.check_model``).
    """
    named, layers = run.model.model_name_or_path, run.model.num_hidden_layers
    with caused_by_the_user():
        config = presets.model_config(named, num_hidden_layers=layers)
    if run.model.model_type not in (None, config.model_type):
        raise UserError(
            f"--model_type is {run.model.model_type}, but {named} is of type {config.model_type}; remove "
            "--model_type, or use another --model_name_or_path"
        )
    check_model(run, config)
    adapter.copy_to(config, run.training)
    fuses = families.FAMILIES[config.model_type].fuses_projections
    config.fuse_attention_qkv = fuses and run.model.fuse_attention_qkv
    config.fuse_attention_ffn = fuses and run.model.fuse_attention_ffn
    config.use_fast_layer_norm = run.model.use_fast_layer_norm
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        if (dropout := getattr(run.model, name)) is not None:
            setattr(config, name, dropout)
    setattr(config, names.LENGTH, run.data.max_seq_length)
    return config


def choose_loss(run: RunConfig, config, on_virtual_npu: bool) -> str:
    """Decide whether the loss is computed without logits, unless ``--use_fused_linear_cross_entropy`` is set.

    Sets the switch in ``run``. Returns the reason if the switch is off without the user having set it to
    false.
    """
    switch = run.fused.use_fused_linear_cross_entropy
    if run.data.stage == "dpo":
        chosen, reason = False, "the loss on preference pairs needs the logits"
    elif run.training.enable_auto_parallel:
        chosen, reason = True, ""
    elif switch is not None:
        chosen, reason = switch, ""
    else:
        limit = os.environ.get(MEMORY_LIMIT) if on_virtual_npu else None
        chosen, reason = _choose_by_size(run, config, int(float(limit) * 2**30) if limit else logits.CARD)
    run.fused.use_fused_linear_cross_entropy = chosen
    return reason


def _choose_by_size(run: RunConfig, config, memory: int) -> tuple[bool, str]:
    tokens = run.training.per_device_train_batch_size * run.data.max_seq_length
    tokens //= max(run.training.sep_parallel_degree, 1)
    parts = degrees.tensor_parallel(config)
    vocabulary = config.vocab_size // (1 if config.vocab_size % parts else parts)
    if logits.are_large(tokens, vocabulary, memory):
        return True, ""
    return False, (
        f"logits of {mib(logits.size(tokens, vocabulary))} take less than {logits.RULE} of the device's "
        f"{mib(memory)}"
    )


def build(run: RunConfig, config, tokenizer, fill: bool = True):
    """``LlamaForCausalLM``, ``Qwen2ForCausalLM``, ... of ``config`` in fp32, on the run's device.

    The trainer casts it. Its configuration, which is stored with the weights, gets the special token ids of
    ``tokenizer``. Random weights depend only on ``--seed``, not on the number of ranks or the sharding.
    Without ``fill`` the caller loads the weights. With ``--finetuning_type lora`` the model is wrapped
    (``llm_npu.models.lora``).

    Raises:
        UserError: The weights in ``--model_name_or_path`` do not fit, or Paddle runs on another device than
            requested.
    """
    requested, actual = run.training.device, paddle.device.get_device()
    if actual.partition(":")[0] != requested.partition(":")[0]:  # the library would continue silently
        raise UserError(f"--device is {run.device}, but Paddle runs on {actual}; check the plugin")
    for name in ("bos_token_id", "pad_token_id"):
        setattr(config, name, getattr(tokenizer, name))
    config.eos_token_id = ends.with_tokenizers(config.eos_token_id, tokenizer.eos_token_id)
    families.set_seed(run.training.seed)
    with caused_by_the_user():  # sizes in the configuration
        if max(degrees.tensor_parallel(config), degrees.pipeline_parallel(config), run.expert_ranks) > 1:
            model = _part_of_model(run, config, fill)
        else:
            paddle.seed(run.training.seed)  # the library gives data-parallel processes different seeds
            model = families.new_model(config)
    if run.model.continue_training:
        weights.load(model, run.model.model_name_or_path)
    return lora.wrap(model, run.model) if run.model.finetuning_type == "lora" else model


def _part_of_model(run: RunConfig, config, fill: bool):
    """This rank's part of a sharded model, with the initial weights of a single process.

    The first rank of every machine builds the whole model in device memory and writes it to the output
    folder; the other ranks read their parts.
    """
    if not fill or run.model.continue_training:
        return _new_part(run, config)
    machine, local = divmod(ranks.number(), int(os.environ.get("PADDLE_LOCAL_SIZE", ranks.count())))
    folder = Path(run.training.output_dir) / f".initial-weights-{machine}"
    if local == 0:
        atomic.delete(folder)  # left by a killed run
        folder.mkdir(parents=True)
        paddle.seed(run.training.seed)
        # The optimizer broadcasts biases in the order of their names, which must match on all ranks.
        with paddle.utils.unique_name.guard():
            whole = families.new_model(degrees.undivided(config))
        stored.write(weights.to_upstream(whole), folder)
        del whole
    ranks.wait()
    families.set_seed(run.training.seed)
    model = _new_part(run, config)
    weights.from_upstream(model, stored.Stored(folder))
    ranks.wait()
    if local == 0:
        shutil.rmtree(folder)
    return model


def _new_part(run: RunConfig, config):
    """This rank's part of a sharded model, with other weights than a single process."""
    if run.expert_ranks == 1:
        return families.new_model(config)
    share = own_experts.ExpertShare.of_rank(ranks.number(), run.expert_ranks)
    with own_experts.built(config.model_type, share):
        return families.new_model(config)


def load_weights(model, folder: str | Path) -> None:
    """Load the weights of a checkpoint. Raises UserError as `lora.load` and `weights.load`."""
    if lora.is_wrapped(model):
        lora.load(model, folder)
    else:
        weights.load(model, folder)
