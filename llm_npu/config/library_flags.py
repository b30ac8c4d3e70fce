"""The library's own training flags, with the limits and aliases that this script adds.

Importing the library takes seconds, so its installed source is parsed instead: ``TrainingArguments`` is a
dataclass whose fields are plain expressions, and ``LlmMetaConfig`` lists the flags that its models add.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import typing
from pathlib import Path

from llm_npu.models import library
from llm_npu.models.library import names

from . import no_effect
from .flag import Flag, NoEffect, flag, flag_metadata, flags_of
from .training import TrainingFlags

SECTION = names.TITLE
Interval = type("Interval", (str,), {"NO": "no", "STEPS": "steps"})  # in place of its IntervalStrategy


def _without_effect(reason: NoEffect | tuple[NoEffect, ...], *names: str) -> dict[str, dict[str, object]]:
    return dict.fromkeys(names, flag_metadata(no_effect=reason))


# The libraries' flags that have limits, aliases or reasons for no effect here, and no field in TrainingFlags.
FLAG_METADATA: dict[str, dict[str, object]] = {
    "adam_beta1": flag_metadata(at_least=0, below=1),
    "adam_epsilon": flag_metadata(at_least=0),
    "dataloader_num_workers": flag_metadata(
        at_least=0,
        no_effect=NoEffect(no_effect.MEMORY_MAPPED.why, lambda run: run.dataloader_num_workers),
    ),
    "gradient_accumulation_steps": flag_metadata(at_least=1),
    "logging_dir": flag_metadata(path=True),
    "logging_strategy": flag_metadata(choices=("no", "steps", "epoch")),
    "max_grad_norm": flag_metadata(at_least=0),
    "metrics_output_path": flag_metadata(path=True),
    "num_train_epochs": flag_metadata(
        at_least=0, no_effect=NoEffect("--max_steps decides", lambda run: run.max_steps > 0)
    ),
    "optim": flag_metadata(choices=("adamw",)),
    "pad_token_id": flag_metadata(
        no_effect=NoEffect("--count_trained_tokens is off", lambda run: not run.count_trained_tokens)
    ),
    "recompute": flag_metadata(aliases=("gradient_checkpointing",)),
    "recompute_granularity": flag_metadata(
        choices=("full", "full_attn", "core_attn"), no_effect=no_effect.NO_RECOMPUTE
    ),
    "save_strategy": flag_metadata(choices=("no", "steps")),
    "scale_loss": flag_metadata(no_effect=NoEffect("only --fp16 scales the loss", lambda run: not run.fp16)),
    "seed": flag_metadata(at_least=0),
    **_without_effect(
        no_effect.ONE_PROCESS,
        "tensor_parallel_degree", "pipeline_parallel_degree", "sharding_degree", "sharding_parallel_degree",
        "sharding_parallel_mesh_dimension", "sep_parallel_degree", "context_parallel_degree",
        "split_inputs_sequence_dim", "expert_parallel_degree", "expert_tensor_parallel_degree",
        "use_expert_parallel", "data_parallel_config", "hybrid_parallel_topo_order",
        "ddp_find_unused_parameters", "log_on_each_node", "save_on_each_node",
    ),
    **_without_effect(
        no_effect.NO_TENSOR_PARALLEL,
        "sequence_parallel", "sequence_parallel_config", "fuse_sequence_parallel_allreduce",
        "tensor_parallel_config", "tensor_parallel_output",
    ),
    **_without_effect(
        no_effect.NO_PIPELINE, "pipeline_parallel_config", "virtual_pp_degree", "pp_recompute_interval"
    ),
    **_without_effect(no_effect.ONE_SHARD, "sharding"),
    **_without_effect(no_effect.NOT_SHARDED, "sharding_parallel_config", "sharding_comm_buffer_size_MB"),
    **_without_effect(no_effect.CUDA, "no_cuda", "use_fused_linear", "use_fused_dropout_add"),
    **_without_effect(no_effect.NO_DROPPED_TOKENS, "expert_max_capacity", "expert_min_capacity"),
    **_without_effect(no_effect.FLOAT32, "amp_custom_black_list", "amp_custom_white_list"),
    **_without_effect(no_effect.HALF_COSINE, "num_cycles"),
    **_without_effect(no_effect.unless_schedule("polynomial"), "lr_end", "power"),
    **_without_effect(
        no_effect.NO_EVALUATION,
        "minimum_eval_times", "prediction_loss_only", "eval_accumulation_steps", "bf16_full_eval",
        "fp16_full_eval",
    ),
    **_without_effect(
        no_effect.NEWEST_KEPT, "load_best_model_at_end", "metric_for_best_model", "greater_is_better"
    ),
    **_without_effect(
        no_effect.WHOLE_CHECKPOINTS,
        "unified_checkpoint", "unified_checkpoint_config", "ckpt_quant_stage", "use_async_save",
        "ignore_save_lr_and_optim", "output_signal_dir", "save_sharded_model", "load_sharded_model",
        "force_reshard_pp", "ordered_save_group_size",
    ),
    **_without_effect(no_effect.NO_WANDB, "wandb_api_key", "wandb_http_proxy"),
    **_without_effect(no_effect.ONLY_TRAINS, "do_export", "do_predict"),
    **_without_effect(
        no_effect.NO_RECOMPUTE,
        "recompute_use_reentrant", "no_recompute_layers", "refined_recompute", "offload_recompute_inputs",
    ),
    **_without_effect(no_effect.OWN_SAMPLES, "distributed_dataloader"),
    **_without_effect(no_effect.MEMORY_MAPPED, "lazy_data_processing"),
    **_without_effect(no_effect.IDS_AND_LABELS, "remove_unused_columns"),
    **_without_effect(no_effect.PADDLE_CLOUD, "pdc_download_ckpt", "pdc_download_timeout"),
}  # fmt: skip


@dataclasses.dataclass
class Absent:
    """Flags without a training argument in one of the libraries; ``training_arguments`` translates them."""

    recompute: bool = flag(False, "Compute each decoder layer again in the backward pass, to save memory.")


@functools.cache
def library_flags() -> dict[str, Flag]:
    """The library's training flags by name, without those that ``TrainingFlags`` declares or turns off."""
    kinds = {"dataclass": dataclasses.dataclass, "field": dataclasses.field, "IntervalStrategy": Interval}
    training = _definition("trainer/training_args.py", "TrainingArguments")
    methods = {node.name for node in training.body if isinstance(node, ast.FunctionDef)}
    arguments = _class(training, ast.AnnAssign, kinds)
    models = _class(_definition("transformers/configuration_utils.py", "LlmMetaConfig"), ast.Assign, {})
    fields = {  # some are listed twice
        name: (name, kind, dataclasses.field(default=default, metadata={"help": help}))
        for attributes in vars(models).values()
        if isinstance(attributes, list)
        for name, kind, default, help in attributes
        if name not in methods
    }
    added = dataclasses.make_dataclass("ModelFlags", fields.values())
    found = {}
    for kind in (Absent, added, arguments):
        found |= {each.name: each for each in map(_named_here, flags_of(kind, SECTION).values()) if each}
    own = {field.name for field in dataclasses.fields(TrainingFlags)} | vars(TrainingFlags).keys()
    return {name: each for name, each in sorted(found.items()) if name not in own}


def _named_here(each: Flag) -> Flag | None:
    """The library's flag under this script's name, with what is known about it here; None if it is none."""
    if names.FLAGS is not None and each.name not in names.FLAGS:
        return None
    name = names.RENAMED.get(each.name, each.name)
    known = FLAG_METADATA.get(name, {}) | {"name": name}
    if each.kind is Interval:
        known["kind"] = str
    if name != each.name:
        known["aliases"] = (each.name,)
    if name in names.DEFAULTS:
        known["default"] = names.DEFAULTS[name]
    return dataclasses.replace(each, **known)


def _definition(file: str, name: str) -> ast.ClassDef:
    """The class ``name`` in the library's ``file``."""
    origin = importlib.util.find_spec(library.installed()).origin
    tree = ast.parse((Path(origin).parent / file).read_text(encoding="utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def _class(definition: ast.ClassDef, kept: type[ast.stmt], names: dict[str, object]) -> type:
    """The class ``definition``, reduced to its statements of the type ``kept``."""
    definition.body = [node for node in definition.body if isinstance(node, kept)]
    names = {"__name__": f"{__name__}.{definition.name}", **vars(typing), **names}
    exec(compile(ast.Module([definition], []), "<library>", "exec", dont_inherit=True), names)
    return names[definition.name]
