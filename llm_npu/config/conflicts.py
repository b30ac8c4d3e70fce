"""Checks for contradicting flags; those of parallelism are in ``parallel_checks``.

``run`` holds the value of every flag by name. Limits of a single flag are in its own field (``flag``).
"""

from __future__ import annotations

import dataclasses
import importlib.util
from argparse import Namespace

from llm_npu.core.errors import UserError
from llm_npu.models import library, other_library
from llm_npu.models.library import names
from paddle_fused import paddle_release

from . import parallel_checks
from .arguments import FusedArguments
from .flag import written
from .formats import profile_window

# Trackers of either library: {name: required package}.
TRACKERS = {"visualdl": "visualdl", "tensorboard": "tensorboardX", "wandb": "wandb", "autonlp": "ray"}
TRACKERS |= names.TRACKERS


def check(run: Namespace) -> None:
    """Raise UserError if the flags of ``run`` contradict each other."""
    if not run.output_dir:  # Path("") is the current folder
        raise UserError("--output_dir is empty; specify a folder, or remove it")
    if not run.do_train:
        raise UserError("--do_train false leaves nothing to do: this script trains")
    if run.do_eval != (run.evaluation_strategy != "no"):
        raise UserError(
            f"--do_eval {written(run.do_eval)} contradicts --evaluation_strategy "
            f"{run.evaluation_strategy}; use only one of them"
        )
    if run.max_restarts and run.resume_from_checkpoint != "auto":
        raise UserError(
            f"--max_restarts is {run.max_restarts}, but a restarted run continues only with "
            "--resume_from_checkpoint auto; set both"
        )
    _check_preference(run)
    for name in other_library.ONLY_PADDLENLP:
        if getattr(run, name):
            other_library.refuse_flag(name)
    if run.enable_auto_parallel:
        _check_auto_parallel(run)
    _check_samples(run)
    _check_observation(run)
    _check_trackers(run.report_to or [])
    _check_precision(run)
    _check_steps(run)
    _check_schedule(run)
    _check_offload(run)
    parallel_checks.check(run)


def _check_samples(run: Namespace) -> None:
    if run.stage == "pt":
        return
    content = "conversations" if run.stage == "sft" else "preference pairs"
    if run.input_dir is None:
        raise UserError(f"--stage {run.stage} needs --input_dir with {content} in .jsonl, one per line")
    if run.packing == "stream":
        raise UserError(
            "--packing stream cuts text every max_seq_length tokens, but --stage "
            f"{run.stage} keeps {content} whole; use first_fit, length_grouped or none"
        )


def _check_preference(run: Namespace) -> None:
    """Check the requirements of ``--stage dpo``."""
    if run.stage != "dpo":
        return
    if library.installed_or_none() == library.PADDLENLP:
        raise UserError(
            "--stage dpo trains PaddleFormers' models, but this environment has PaddleNLP; in a separate "
            'environment, run pip install ".[paddleformers]"'
        )
    for name in ("tensor_parallel_degree", "pipeline_parallel_degree"):
        if run.processes > 1 and getattr(run, name) > 1:
            raise UserError(
                f"--{name} is {getattr(run, name)}, but --stage dpo cannot split the model, because its "
                "loss needs all logits of a process's rows; remove it, or set --sharding"
            )


def _check_observation(run: Namespace) -> None:
    """Check profiling, layer comparison and dumps."""
    for name in ("check_nan_inf", "compare_with", "dump_tensors"):
        if getattr(run, name) and run.enable_auto_parallel:
            raise UserError(f"--{name} needs undistributed layers; remove --enable_auto_parallel")
        if getattr(run, name) and run.pipeline_parallel_degree > 1:
            raise UserError(f"--{name} does not work in a pipeline; remove --pipeline_parallel_degree")
    switches = {field.name: getattr(run, field.name) for field in dataclasses.fields(FusedArguments)}
    if run.compare_with and not any(FusedArguments(**switches).of_layers().values()):
        raise UserError(
            "--compare_with compares fused operators, but this run has none; remove --compare_with, or "
            "enable a fused operator"
        )
    if run.profile is None:
        return
    window = profile_window(run.profile)
    if run.device == "cpu":
        raise UserError("--profile needs --device npu or virtual_npu: it records device activity")
    if run.max_steps != -1 and window.last > run.max_steps:
        raise UserError(
            f"--profile {run.profile} records {window}, but --max_steps {run.max_steps} ends before that"
        )


def _check_trackers(trackers: list[str]) -> None:
    """Reject trackers early that the library's Trainer would reject after building everything."""
    if trackers in (["all"], ["none"]):
        return
    for name in trackers:
        if name not in TRACKERS:
            raise UserError(
                f"--report_to is {name!r}, but must be all, none, or a list of {', '.join(TRACKERS)}"
            )
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise UserError(
                f"--report_to {name} needs the package {TRACKERS[name]}, which is not installed here; "
                "install it, or remove the tracker"
            )


def _check_precision(run: Namespace) -> None:
    if run.bf16 and run.fp16:
        raise UserError("--bf16 and --fp16 are both set; choose one")
    if (run.bf16 or run.fp16) and run.device == "cpu":
        raise UserError(
            f"--{'bf16' if run.bf16 else 'fp16'} needs --device npu or virtual_npu: "
            "Paddle's CPU place computes in float32 only"
        )
    if run.to_static and not run.enable_auto_parallel:
        raise UserError(
            "--to_static does not work with PaddleNLP's Trainer; add --enable_auto_parallel, or "
            "train in dynamic mode"
        )


def _check_auto_parallel(run: Namespace) -> None:
    """Reject what ``llm_npu.parallel`` does not support."""
    if run.fp16:
        raise UserError("--enable_auto_parallel trains in float32 or bfloat16; set --bf16 instead of --fp16")
    if run.bf16 and (run.fp16_opt_level != "O2" or not run.amp_master_grad):
        raise UserError(
            "--enable_auto_parallel with --bf16 keeps low-precision weights and float32 gradients; remove "
            "--fp16_opt_level and --amp_master_grad"
        )
    if run.finetuning_type != "full":
        raise UserError("--enable_auto_parallel trains all weights; remove --finetuning_type")
    if run.packing != "stream" or run.reset_attention_mask:
        raise UserError(
            "--enable_auto_parallel splits rows of equal length without masks; set --packing stream, "
            "without --reset_attention_mask"
        )
    if run.to_static and run.nonfinite == "skip":
        raise UserError(
            "--nonfinite skip does not work with --to_static, whose program updates the weights before the "
            "loss is known; remove one of the two"
        )
    if run.pipeline_parallel_degree > 1 and run.hybrid_parallel_topo_order == "sharding_first":
        raise UserError(
            "--enable_auto_parallel makes the processes of a stage adjacent; remove "
            "--hybrid_parallel_topo_order, or use pp_first"
        )
    if run.pipeline_parallel_degree > 1 and paddle_release.before(3, 1):
        raise UserError(
            "--enable_auto_parallel with --pipeline_parallel_degree needs Paddle 3.1 or later for pipeline "
            f"schedules; this is {paddle_release.installed_paddle().version}. "
            "Remove --enable_auto_parallel to use the pipeline of PaddleNLP's Trainer."
        )


def _check_steps(run: Namespace) -> None:
    steps = run.max_steps
    if steps == 0 or steps < -1:
        raise UserError(f"--max_steps is {steps}, but must be 1 or more (or -1 to use num_train_epochs)")
    if steps == -1 and run.num_train_epochs <= 0:
        raise UserError("--max_steps is -1 and --num_train_epochs is 0, so there is nothing to train")
    for interval in run.skip_data_intervals or []:
        if len(interval) != 2 or not 1 <= interval[0] <= interval[1]:
            raise UserError(
                f"--skip_data_intervals is {' '.join(map(str, interval))}, but must be the first and the "
                "last step to skip, counted from 1"
            )
    trained = 1
    for first, last in sorted(run.skip_data_intervals or []):
        if first <= trained:
            trained = max(trained, last + 1)
    if steps != -1 and trained > steps:
        raise UserError(f"--skip_data_intervals skips all of the {steps} steps, so there is nothing to train")


def _check_schedule(run: Namespace) -> None:
    if run.warmup_ratio > 1:
        raise UserError(f"--warmup_ratio is {run.warmup_ratio}, but must be between 0 and 1")
    if run.lr_scheduler_type == "polynomial" and run.lr_end >= run.learning_rate:
        raise UserError(f"--lr_end is {run.lr_end}, but must be below --learning_rate {run.learning_rate}")
    if run.lr_scheduler_type not in ("cosine", "linear"):
        return
    if run.min_learning_rate > run.learning_rate:
        raise UserError(
            f"--min_learning_rate {run.min_learning_rate} is greater than --learning_rate {run.learning_rate}"
        )
    end = run.decay_steps or run.max_steps
    warmup = run.warmup_steps or run.warmup_ratio * max(run.max_steps, 0)
    if 0 < end < warmup:
        raise UserError(
            f"warmup takes {warmup:g} steps (--warmup_steps or --warmup_ratio), but the learning rate's "
            f"decay ends at step {end} (--{'decay_steps' if run.decay_steps else 'max_steps'})"
        )


def _check_offload(run: Namespace) -> None:
    """Check the requirements of ``--offload_optimizer`` and ``--offload_activations``."""
    if run.device == "cpu":
        return
    activations = run.offload_activations if run.recompute else None
    values = {"offload_optimizer": run.offload_optimizer, "offload_activations": activations}
    flags = [f"--{name} {value}" for name, value in values.items() if value is not None]
    if not flags:
        return
    if run.enable_auto_parallel:
        raise UserError(
            f"{flags[0]} does not support --enable_auto_parallel, whose tensors are distributed; remove one "
            "of the two"
        )
    if run.processes > 1 and (stages := parallel_checks.stages_2_and_3(run)):
        raise UserError(f"{flags[0]} does not support --sharding {stages.pop()}; set --sharding stage1")
    if run.stage == "dpo":
        raise UserError(f"{flags[0]} was not tested with --stage dpo; remove it")
    if run.offload_optimizer is not None and (run.disable_fused_options or not run.use_fused_adamw):
        off = "--disable_fused_options" if run.disable_fused_options else "--use_fused_adamw false"
        raise UserError(
            f"{flags[0]} is a mode of the fused AdamW, which {off} turns off; remove one of the two"
        )
    granularity = getattr(run, "recompute_granularity", "full")  # PaddleNLP's
    if activations is not None and granularity != "full":
        raise UserError(
            f"{flags[-1]} keeps the inputs of whole layers, but --recompute_granularity is {granularity}; "
            "use full, or remove one of the two"
        )
    if activations is not None and getattr(run, "refined_recompute", ""):
        raise UserError(
            f"{flags[-1]} does not support --refined_recompute, which saves more than the inputs of layers; "
            "remove one of the two"
        )
