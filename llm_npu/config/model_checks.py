"""Refusals of runs that their model cannot do."""

from __future__ import annotations

from llm_npu.core.errors import UserError
from llm_npu.models.paddlenlp.families import FAMILIES, titles

from .arguments import RunConfig


def check_model(run: RunConfig, config) -> None:
    """ValueError when the model of ``config`` (a ``LlamaConfig``, ...) cannot be trained as ``run`` asks."""
    _check_parallel(run, config)
    length, positions = run.data.max_seq_length, config.max_position_embeddings
    if length > positions:
        raise UserError(
            f"--max_seq_length is {length}, but {run.model.model_name_or_path} has {positions} positions; "
            f"give {positions} or less"
        )
    window = getattr(config, "sliding_window", None)
    if FAMILIES[config.model_type].windowed and window and length > window:
        raise UserError(
            f"--max_seq_length is {length}, but {run.model.model_name_or_path} has a sliding window of "
            f"{window} tokens, which PaddleNLP does not compute; give {window} or less"
        )
    if run.data.padding == "none" and getattr(config, "rope_scaling_type", None) == "dynamic_ntk":
        raise UserError(
            "--padding none joins samples to one row, which the dynamic rotary scaling of "
            f"{run.model.model_name_or_path} takes for one long text; give --padding longest"
        )
    for layer in run.training.no_recompute_layers or ():
        if not 0 <= layer < config.num_hidden_layers:
            raise UserError(
                f"--no_recompute_layers names layer {layer}, but the model has layers 0 to "
                f"{config.num_hidden_layers - 1}"
            )


def _check_parallel(run: RunConfig, config) -> None:
    """ValueError for degrees that do not divide the model."""
    training = run.training
    tensor, stages = training.tensor_parallel_degree, training.pipeline_parallel_degree
    family = FAMILIES[config.model_type]
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        size = getattr(config, name)
        if tensor > 1 and size % tensor:
            raise UserError(
                f"--tensor_parallel_degree is {tensor}, but {run.model.model_name_or_path} has {name} "
                f"{size}, which is no multiple of it; give a degree that divides {size}"
            )
    if tensor > 1 and family.drops_attention and config.attention_dropout:
        raise UserError(
            f"{run.model.model_name_or_path} has attention_dropout {config.attention_dropout}, but with "
            "--tensor_parallel_degree PaddleNLP draws the same masks for the heads of every process; set it "
            "to 0 in config.json, or leave --tensor_parallel_degree out"
        )
    if training.sequence_parallel and tensor > 1 and run.data.max_seq_length % tensor:
        raise UserError(
            f"--sequence_parallel cuts rows into {tensor} parts, but --max_seq_length is "
            f"{run.data.max_seq_length}; give a multiple of {tensor}"
        )
    if tensor > 1 and training.sequence_parallel and run.data.packing != "stream":
        raise UserError(
            "--sequence_parallel needs rows of one length, so --packing stream; this run has "
            f"--packing {run.data.packing}"
        )
    if stages > 1 and not family.pipeline:
        cut = titles(lambda each: each.pipeline)
        raise UserError(
            f"--pipeline_parallel_degree is {stages}, but this script cuts {cut} into stages only; leave it "
            f"out, or train a {cut}"
        )
    if stages > 1 and (run.data.packing != "stream" or run.data.reset_attention_mask):
        raise UserError(
            "a pipeline passes no masks from stage to stage here; with --pipeline_parallel_degree give "
            "--packing stream, without --reset_attention_mask"
        )
    if stages > config.num_hidden_layers:
        raise UserError(
            f"--pipeline_parallel_degree is {stages}, but {run.model.model_name_or_path} has "
            f"{config.num_hidden_layers} layers; give {config.num_hidden_layers} or less"
        )
    parts = stages * (training.virtual_pp_degree or 1)
    if parts > stages > 1 and config.num_hidden_layers % parts:
        raise UserError(
            f"--pipeline_parallel_degree {stages} times --virtual_pp_degree {training.virtual_pp_degree} is "
            f"{parts}, which does not divide the {config.num_hidden_layers} layers of "
            f"{run.model.model_name_or_path}; give degrees whose product does"
        )
    shared = max(tensor, stages) > 1
    if shared and run.model.finetuning_type == "lora":
        raise UserError(
            "--finetuning_type lora trains with data parallel and sharding only; leave "
            "--tensor_parallel_degree and --pipeline_parallel_degree out"
        )
    if run.model.finetuning_type == "lora" and any(kind.value == "stage3" for kind in training.sharding):
        raise UserError(
            "--finetuning_type lora keeps whole weights on each process, to merge A and B into at the end, "
            "and --sharding stage3 splits them; give stage1 or stage2, or leave --sharding out"
        )
    if shared and family.experts:
        raise UserError(
            f"the experts of {run.model.model_name_or_path} are not split over processes here; leave "
            "--tensor_parallel_degree and --pipeline_parallel_degree out"
        )
