"""Checks for flags that contradict the model."""

from __future__ import annotations

from llm_npu.core.errors import UserError
from llm_npu.models import degrees
from llm_npu.models.families import FAMILIES, titles_of
from llm_npu.models.family import Family
from llm_npu.models.library import names

from . import schedules
from .arguments import RunConfig
from .formats import layer_range

# Families tested with --context_parallel_degree, and with split sequences and tensor parallelism.
TESTED_COMBINED = ("llama", "qwen2", "mixtral", "qwen2_moe")


def check_model(run: RunConfig, config, family: Family | None = None) -> None:
    """Raise UserError if the model of ``config`` (a ``LlamaConfig``, ...) cannot be trained with ``run``.

    ``family``: the family of the model, by default in the installed library.
    """
    family = family or FAMILIES[config.model_type]
    _check_tensor_parallel(run, config, family)
    _check_pipeline(run, config, family)
    _check_split_sequences(run, config, family)
    _check_expert_parallel(run, config, family)
    _check_expert_capacity(run, family)
    _check_lora(run, family)
    _check_recompute(run, family)
    name, length, positions = (
        run.model.model_name_or_path,
        run.data.max_seq_length,
        config.max_position_embeddings,
    )
    if length > positions:
        raise UserError(
            f"--max_seq_length is {length}, but {name} has {positions} positions; use at most {positions}"
        )
    window = getattr(config, "sliding_window", None)
    if family.has_sliding_window and window and length > window:
        raise UserError(
            f"--max_seq_length is {length}, but {name} has a sliding window of {window} tokens, which "
            f"PaddleNLP does not support; use at most {window}"
        )
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    if run.data.stage == "dpo" and slides and length > window:
        raise UserError(
            "--stage dpo places both answers of a pair in one row, so the rejected answer is further from "
            f"the prompt than its positions say, but {name} has a sliding window of {window} tokens; use "
            f"--max_seq_length {window} or less"
        )
    if run.data.padding == "none" and getattr(config, "rope_scaling_type", None) == "dynamic_ntk":
        raise UserError(
            "--padding none joins samples into one row, which the dynamic rotary scaling of "
            f"{name} treats as one long text; set --padding longest"
        )
    layers = run.training.offload_activations
    if layers is not None and not range(config.num_hidden_layers)[layer_range(layers)]:
        raise UserError(
            f"--offload_activations {layers} selects none of the model's layers 0 to "
            f"{config.num_hidden_layers - 1}"
        )
    for layer in run.training.no_recompute_layers or ():
        if not 0 <= layer < config.num_hidden_layers:
            raise UserError(
                f"--no_recompute_layers names layer {layer}, but the model has layers 0 to "
                f"{config.num_hidden_layers - 1}"
            )


def _check_tensor_parallel(run: RunConfig, config, family: Family) -> None:
    training, name, degree = run.training, run.model.model_name_or_path, run.training.tensor_parallel_degree
    if degree <= 1:
        return
    if training.sequence_parallel and not family.sequence_parallel:
        raise UserError(
            f"--sequence_parallel is not available for {family.title}: {names.TITLE} does not split its "
            "layers along the sequence; remove it"
        )
    if family.distributes_experts and not family.experts.tensor_parallel and run.expert_ranks == 1:
        raise UserError(
            f"--tensor_parallel_degree is {degree}, but the experts of {name} are not split over processes "
            "here; distribute them with --expert_parallel_degree and --sequence_parallel true, or remove "
            "--tensor_parallel_degree"
        )
    degrees.check_tensor_parallel(family, config, degree, name, run.expert_ranks)
    if family.has_attention_dropout and config.attention_dropout:
        raise UserError(
            f"{name} has attention_dropout {config.attention_dropout}, but with --tensor_parallel_degree "
            f"{names.TITLE} draws identical dropout masks on all ranks; set it to 0 in config.json, or "
            "remove --tensor_parallel_degree"
        )
    if training.sequence_parallel and run.data.max_seq_length % degree:
        raise UserError(
            f"--sequence_parallel splits rows into {degree} parts, but --max_seq_length is "
            f"{run.data.max_seq_length}; specify a multiple of {degree}"
        )
    if training.sequence_parallel and run.data.packing != "stream":
        raise UserError(
            "--sequence_parallel needs rows of equal length (--packing stream), but this run has "
            f"--packing {run.data.packing}"
        )


def _check_pipeline(run: RunConfig, config, family: Family) -> None:
    training, name, layers = run.training, run.model.model_name_or_path, config.num_hidden_layers
    stages = training.pipeline_parallel_degree
    if stages <= 1:
        return
    if not family.pipeline:
        cut = titles_of(lambda other: other.pipeline)
        raise UserError(
            f"--pipeline_parallel_degree is {stages}, but pipelines support only {cut}; remove "
            f"it, or train a {cut}"
        )
    if run.data.packing != "stream" or run.data.reset_attention_mask:
        raise UserError(
            "--pipeline_parallel_degree does not pass masks between stages; set --packing stream without "
            "--reset_attention_mask"
        )
    experts = family.experts
    if experts and getattr(config, "output_router_logits", False):
        raise UserError(
            f"--pipeline_parallel_degree does not pass router losses between stages, but {name} has "
            "output_router_logits; set it to false in config.json, or remove the flag"
        )
    if experts and training.pipeline_schedule == schedules.DUALPIPEV:
        raise UserError(
            f"--pipeline_schedule {schedules.DUALPIPEV} was not tested with MoE models such as "
            f"{name}; use 1f1b"
        )
    chunks = training.virtual_pp_degree or 1
    if experts and chunks > 1:
        raise UserError(f"--virtual_pp_degree {chunks} was not tested with MoE models such as {name}; use 1")
    spread = experts and experts.tensor_parallel == "number" and training.tensor_parallel_degree > 1
    if spread and not training.sequence_parallel:
        raise UserError(
            f"--tensor_parallel_degree splits the experts of {name}, which in a pipeline also needs "
            "--sequence_parallel; add it, or remove one of the degrees"
        )
    degrees.check_stages(config, stages, name)
    parts = stages * schedules.CHUNKS
    if training.pipeline_schedule == schedules.DUALPIPEV and layers % parts:
        raise UserError(
            f"--pipeline_schedule {schedules.DUALPIPEV} with {stages} stages makes {parts} chunks, "
            f"which does not divide the {layers} layers of {name}; use a degree whose double does, or 1f1b"
        )
    parts = stages * chunks
    if parts > stages and layers % parts:
        raise UserError(
            f"--pipeline_parallel_degree {stages} times --virtual_pp_degree {chunks} is "
            f"{parts}, which does not divide the {layers} layers of {name}; use degrees whose product does"
        )


def _check_split_sequences(run: RunConfig, config, family: Family) -> None:
    training, name, ranks = run.training, run.model.model_name_or_path, run.training.sep_parallel_degree
    if ranks <= 1:
        return
    shared = ranks // run.ring
    degrees = {"sep_parallel_degree": shared, "context_parallel_degree": run.ring}
    split = " and ".join(f"--{flag} {degree}" for flag, degree in degrees.items() if degree > 1)
    if not family.splits_sequences:
        raise UserError(
            f"{split} splits sequences, but only those of "
            f"{titles_of(lambda other: other.splits_sequences)} can be split; remove it"
        )
    if max(run.ring, training.tensor_parallel_degree) > 1 and config.model_type not in TESTED_COMBINED:
        raise UserError(
            f"sequences of {family.title} are split only by --sep_parallel_degree without "
            "--tensor_parallel_degree and --context_parallel_degree; remove the others"
        )
    heads = config.num_attention_heads // max(training.tensor_parallel_degree, 1)
    if heads < shared:
        raise UserError(
            f"--sep_parallel_degree is {shared}, but {name} has only {heads} attention heads to split; use "
            f"at most {heads}"
        )
    dropouts = ["hidden_dropout_prob", "attention_probs_dropout_prob"] * family.has_hidden_dropout
    dropouts += ["attention_dropout"] * family.has_attention_dropout
    for field in dropouts:
        from_flag = getattr(run.model, field, None)
        if dropout := getattr(config, field) if from_flag is None else from_flag:
            raise UserError(
                f"{name} has {field} {dropout}, which {split} does not support; set it to 0 in "
                f"config.json or with its flag, or remove {split}"
            )
    if getattr(config, "rope_scaling_type", None) == "dynamic_ntk" and run.data.packing != "stream":
        raise UserError(
            f"{split} pads rows, and the dynamic rotary scaling of {name} depends on their length; use "
            "--packing stream"
        )


def _check_expert_parallel(run: RunConfig, config, family: Family) -> None:
    name, ranks = run.model.model_name_or_path, run.expert_ranks
    if ranks == 1:
        return
    if not family.distributes_experts:
        raise UserError(
            f"--expert_parallel_degree {ranks} distributes experts over ranks, but only those of "
            f"{titles_of(lambda other: other.distributes_experts)} can be distributed; remove it"
        )
    if (number := getattr(config, family.experts.number)) % ranks:
        raise UserError(
            f"--expert_parallel_degree is {ranks}, but {name} has {family.experts.number} {number}, which is "
            f"not a multiple of it; specify a degree that divides {number}"
        )


def _check_expert_capacity(run: RunConfig, family: Family) -> None:
    training = run.training
    if training.moe_expert_capacity_factor is None:
        return
    factor = f"--moe_expert_capacity_factor {training.moe_expert_capacity_factor}"
    if not family.distributes_experts:
        raise UserError(
            f"{factor} limits the experts of {titles_of(lambda other: other.distributes_experts)}; remove it"
        )
    if training.enable_auto_parallel:
        raise UserError(
            f"{factor} reads the number of dropped tokens, which the programs of --enable_auto_parallel do "
            "not; remove one of the two"
        )
    if training.tensor_parallel_degree > 1 and run.expert_ranks == 1:
        raise UserError(
            f"{factor} needs whole experts; with --tensor_parallel_degree, also set "
            "--sequence_parallel true and --expert_parallel_degree"
        )
    if run.fused.disable_fused_options or run.fused.use_fused_moe is False:
        raise UserError(f"{factor} needs the fused MoE layers, which drop the tokens; leave use_fused_moe on")
    if run.data.stage == "dpo" or run.model.finetuning_type != "full":
        dpo = run.data.stage == "dpo"
        flag = "--stage dpo" if dpo else f"--finetuning_type {run.model.finetuning_type}"
        raise UserError(f"{factor} was not tested with {flag}; remove one of the two")


def _check_lora(run: RunConfig, family: Family) -> None:
    training, lora = run.training, run.model.finetuning_type == "lora"
    split = max(training.tensor_parallel_degree, training.pipeline_parallel_degree) > 1
    if split and lora:
        raise UserError(
            "--finetuning_type lora supports data parallelism and sharding only; remove "
            "--tensor_parallel_degree and --pipeline_parallel_degree"
        )
    if lora and any(kind.value == "stage3" for kind in training.sharding):
        raise UserError(
            "--finetuning_type lora merges A and B into whole weights on each process at the end, but "
            "--sharding stage3 splits the weights; use stage1 or stage2, or remove --sharding"
        )
    if lora and family.stored_as:
        raise UserError(
            f"--finetuning_type lora cannot write an adapter of {family.title}, which has a different "
            "file layout; set --finetuning_type full"
        )


def _check_recompute(run: RunConfig, family: Family) -> None:
    switch = "use_fused_dropout_add_layer_norm"
    is_upstream = "dropout_add_layer_norm" in family.layers and not run.fused.switches()[switch]
    if run.training.recompute and run.training.recompute_granularity == "full" and is_upstream:
        raise UserError(
            f"--recompute_granularity is full, but with {switch} off {names.TITLE}'s {family.title} "
            f"recomputes nothing with it; use full_attn or core_attn, or leave {switch} on"
        )
