"""Values and combinations that cannot work, found before anything is built."""

from __future__ import annotations

import math
from dataclasses import fields

from llm_npu.core import peak_flops
from llm_npu.models.paddlenlp.families import FAMILIES
from paddle_fused import paddle_release

from .fused import FusedArguments
from .profile import profile_window
from .step_range import steps_of

CHOICES = {
    "model_type": (None, *FAMILIES),
    "fp16_opt_level": ("O0", "O1", "O2"),
    "evaluation_strategy": ("no", "steps"),
    "logging_strategy": ("no", "steps", "epoch"),
    "save_strategy": ("no", "steps"),
    "lr_scheduler_type": ("linear", "cosine", "constant", "constant_with_warmup", "polynomial"),
    "optim": ("adamw",),
    "recompute_granularity": ("full", "full_attn", "core_attn"),
    "data_impl": ("mmap",),
    "stage": ("pt", "sft"),
    "packing": ("none", "stream", "first_fit", "length_grouped"),
    "padding": ("none", "longest", "max_length"),
    "finetuning_type": ("full", "lora"),
    "nonfinite": ("stop", "skip"),
    "compare_with": (None, "composed", "stock"),
}

AT_LEAST = {
    "max_seq_length": 1,
    "lora_rank": 1,
    "lora_alpha": 1,
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "num_hidden_layers": 1,
    "logging_steps": 1,
    "eval_steps": 1,
    "save_steps": 1,
    "save_total_limit": 1,
    "max_restarts": 0,
    "decay_steps": 1,
    "warmup_steps": 0,
    "dataloader_num_workers": 0,
    "seed": 0,
    "learning_rate": 0,
    "min_learning_rate": 0,
    "weight_decay": 0,
    "max_grad_norm": 0,
    "adam_epsilon": 0,
    "warmup_ratio": 0,
    "num_train_epochs": 0,
    "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0,
    "lora_dropout": 0,
}

BELOW_ONE = (
    "adam_beta1",
    "adam_beta2",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "lora_dropout",
)


def check_values(values: dict, device: str) -> None:
    """ValueError with one sentence when ``values`` (argument -> value) cannot work on ``device``."""
    for name, interval in (("evaluation_strategy", "eval_steps"), ("save_strategy", "save_steps")):
        if values[name] == "epoch":
            raise ValueError(
                f"--{name} is 'epoch', but the whole run counts as one; give --{interval} instead"
            )
    for name, choices in CHOICES.items():
        if values[name] not in choices:
            accepted = _or(tuple(choice for choice in choices if choice is not None))
            raise ValueError(f"--{name} is {values[name]!r}, but must be {accepted}")
    for name, lowest in AT_LEAST.items():
        value = values[name]
        if value is not None and not (value >= lowest and math.isfinite(value)):
            raise ValueError(f"--{name} is {value}, but must be {lowest} or more")
    for name in BELOW_ONE:
        if not 0 <= values[name] < 1:
            raise ValueError(f"--{name} is {values[name]}, but must be at least 0 and below 1")
    split_weights(values["split"])
    if not values["do_train"]:
        raise ValueError("--do_train false leaves nothing to do: this script trains")
    if values["do_eval"] != (values["evaluation_strategy"] != "no"):
        raise ValueError(
            f"--do_eval {str(values['do_eval']).lower()} contradicts --evaluation_strategy "
            f"{values['evaluation_strategy']}; give one of the two"
        )
    if values["max_restarts"] and str(values["resume_from_checkpoint"]).lower() != "auto":
        raise ValueError(
            f"--max_restarts is {values['max_restarts']}, but a run that starts again goes on only with "
            "--resume_from_checkpoint auto; give both"
        )
    if values["enable_auto_parallel"]:
        _check_auto_parallel(values)
    _check_samples(values)
    _check_observed(values)
    _check_precision(values, device)
    _check_steps(values)
    _check_profile(values, device)


def split_weights(split: str) -> tuple[float, float, float]:
    """``949,50,1`` (or ``949/50/1``) -> the fractions of the training, validation and test documents."""
    parts = split.replace("/", ",").split(",")
    try:
        weights = [float(part) for part in parts]
    except ValueError:
        weights = []
    if (
        not 1 <= len(weights) <= 3
        or not all(0 <= weight < math.inf for weight in weights)
        or not sum(weights)
    ):
        raise ValueError(
            f"--split is {split!r}, but must be up to three weights of 0 or more for training, validation "
            "and test, such as 949,50,1"
        )
    if not weights[0]:
        raise ValueError(
            f"--split is {split!r}, which leaves nothing for training; the first weight must be above 0"
        )
    weights += [0.0] * (3 - len(weights))
    return tuple(weight / sum(weights) for weight in weights)


def _check_samples(values: dict) -> None:
    if values["stage"] == "sft" and values["input_dir"] is None:
        raise ValueError("--stage sft needs --input_dir with conversations in .jsonl, one to a line")
    if values["stage"] == "sft" and values["packing"] == "stream":
        raise ValueError(
            "--packing stream cuts text every max_seq_length tokens, and --stage sft keeps conversations "
            "whole; give first_fit, length_grouped or none"
        )


def _check_observed(values: dict) -> None:
    """What looks at the layers of a run, and the peak that its speed is compared with."""
    if values["peak_tflops"] is not None:
        peak_flops.stated(str(values["peak_tflops"]))
    if values["dump_tensors"] is not None:
        steps_of(str(values["dump_tensors"]))
    for name in ("check_nan_inf", "compare_with", "dump_tensors"):
        if values[name] and values["enable_auto_parallel"]:
            raise ValueError(f"--{name} looks at whole layers; leave --enable_auto_parallel out")
        if values[name] and values["pipeline_parallel_degree"] > 1:
            raise ValueError(f"--{name} runs no pipeline; leave --pipeline_parallel_degree out")
    switches = {field.name: values[field.name] for field in fields(FusedArguments)}
    if values["compare_with"] and (switches.pop("disable_fused_options") or not any(switches.values())):
        raise ValueError(
            "--compare_with compares fused operators with others, and this run has none; leave it out, or "
            "--disable_fused_options and the like"
        )


def _check_precision(values: dict, device: str) -> None:
    if values["bf16"] and values["fp16"]:
        raise ValueError("--bf16 and --fp16 were both given; choose one")
    low_precision = values["bf16"] or values["fp16"]
    if low_precision and device == "cpu":
        raise ValueError(
            f"--{'bf16' if values['bf16'] else 'fp16'} needs --device npu or virtual_npu: "
            "Paddle's CPU place computes in fp32 only"
        )
    if values["use_fused_linear_cross_entropy"]:
        raise ValueError("--use_fused_linear_cross_entropy needs PaddleNLP's Triton kernels, which need CUDA")
    if values["to_static"] and not values["enable_auto_parallel"]:
        raise ValueError(
            "--to_static does not work with PaddleNLP's Trainer; give "
            "--enable_auto_parallel as well, or train in dynamic mode"
        )


def _check_auto_parallel(values: dict) -> None:
    """What ``llm_npu.parallel`` does not do."""
    if values["fp16"]:
        raise ValueError(
            "--enable_auto_parallel trains in float32 or bfloat16; give --bf16 in the place of --fp16"
        )
    if values["bf16"] and (values["fp16_opt_level"] != "O2" or not values["amp_master_grad"]):
        raise ValueError(
            "--enable_auto_parallel with --bf16 keeps low-precision weights and adds gradients up in "
            "float32; leave --fp16_opt_level and --amp_master_grad out"
        )
    if values["finetuning_type"] != "full":
        raise ValueError("--enable_auto_parallel trains all weights; leave --finetuning_type out")
    if values["packing"] != "stream" or values["reset_attention_mask"]:
        raise ValueError(
            "--enable_auto_parallel splits rows of one length without masks; give --packing stream, without "
            "--reset_attention_mask"
        )
    if values["to_static"] and values["nonfinite"] == "skip":
        raise ValueError(
            "--nonfinite skip comes too late with --to_static, where a program has made the step before its "
            "loss is known; leave one of the two out"
        )
    if values["pipeline_parallel_degree"] > 1 and values["hybrid_parallel_topo_order"] == "sharding_first":
        raise ValueError(
            "--enable_auto_parallel puts the processes of a stage side by side; leave "
            "--hybrid_parallel_topo_order out, or give pp_first"
        )
    if values["pipeline_parallel_degree"] > 1 and paddle_release.before(3, 1):
        raise ValueError(
            "--enable_auto_parallel with --pipeline_parallel_degree needs Paddle 3.1 or later, whose "
            f"auto-parallel has schedules of stages; this is {paddle_release.installed_paddle().version}. "
            "Leave --enable_auto_parallel out: PaddleNLP's Trainer has pipelines."
        )


def _check_steps(values: dict) -> None:
    steps = values["max_steps"]
    if steps == 0 or steps < -1:
        raise ValueError(f"--max_steps is {steps}, but must be 1 or more (or -1: num_train_epochs decides)")
    if steps == -1 and values["num_train_epochs"] <= 0:
        raise ValueError("--max_steps is -1 and --num_train_epochs is 0, so there is nothing to train")
    _check_skipped(values["skip_data_intervals"] or [], steps)
    limit = values["max_evaluate_steps"]
    if limit == 0 or limit < -1:
        raise ValueError(f"--max_evaluate_steps is {limit}, but must be 1 or more (or -1 for all batches)")
    if values["warmup_ratio"] > 1:
        raise ValueError(f"--warmup_ratio is {values['warmup_ratio']}, but must lie between 0 and 1")
    if values["lr_scheduler_type"] not in ("cosine", "linear"):
        return
    if values["min_learning_rate"] > values["learning_rate"]:
        raise ValueError(
            f"--min_learning_rate {values['min_learning_rate']} is above "
            f"--learning_rate {values['learning_rate']}"
        )
    end = values["decay_steps"] or steps
    warmup = values["warmup_steps"] or values["warmup_ratio"] * max(steps, 0)
    if 0 < end < warmup:
        raise ValueError(
            f"the learning rate warms up for {warmup:g} steps (--warmup_steps or --warmup_ratio), but has "
            f"decayed by step {end} already (--{'decay_steps' if values['decay_steps'] else 'max_steps'})"
        )


def _check_profile(values: dict, device: str) -> None:
    if values["profile"] is None:
        return
    window, steps = profile_window(values["profile"]), values["max_steps"]
    if device == "cpu":
        raise ValueError("--profile needs --device npu or virtual_npu: it records what that device does")
    if steps != -1 and window.last > steps:
        raise ValueError(
            f"--profile {values['profile']} records {window}, but --max_steps {steps} ends before that"
        )


def _check_skipped(intervals: list[list[int]], steps: int) -> None:
    for interval in intervals:
        if len(interval) != 2 or not 1 <= interval[0] <= interval[1]:
            raise ValueError(
                f"--skip_data_intervals is {' '.join(map(str, interval))}, but must be the first and the "
                "last step to skip, counted from 1"
            )
    trained = 1
    for first, last in sorted(intervals):
        if first <= trained:
            trained = max(trained, last + 1)
    if steps != -1 and trained > steps:
        raise ValueError(
            f"--skip_data_intervals skips all of the {steps} steps, so there is nothing to train"
        )


def _or(choices: tuple[str, ...]) -> str:
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + f" or {choices[-1]}"
