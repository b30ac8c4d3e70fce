"""Checks for contradicting flags, and for parallel degrees that do not divide the number of processes.

``run`` holds the value of every flag by name. Limits of a single flag are in its own field (``flag``).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from argparse import Namespace

from llm_npu.core import machines
from llm_npu.core.errors import UserError
from llm_npu.models import library, other_library
from llm_npu.models.library import names
from paddle_fused import paddle_release

from . import schedules
from .arguments import FusedArguments
from .flag import written
from .formats import profile_window

# PaddleNLP's parallelism over experts, instead of which this script has --expert_parallel_degree.
UNSUPPORTED_PARALLELISM = ("expert_tensor_parallel_degree", "use_expert_parallel")
SPLIT_SEQUENCES = ("sep_parallel_degree", "context_parallel_degree")
DEGREES = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    *SPLIT_SEQUENCES,
    "sharding_degree",
    "sharding_parallel_degree",
)
# Flags that split sequences do not support, and why.
WITHOUT_SPLIT_SEQUENCES = {
    "enable_auto_parallel": ", whose programs have no group for it",
    "overlap": ", which was not tested with it",
    "compare_with": ", which computes attention without the other ranks",
    "dump_tensors": ", which expects whole sequences",
    "check_nan_inf": ", which was not tested with it",
    "fp16": ", which was not tested with it",
}
# Flags that experts over ranks do not support, and why.
WITHOUT_EXPERT_PARALLEL = {
    "enable_auto_parallel": ", whose programs do not read the number of tokens that ranks exchange",
    "disable_fused_options": ", because the fused mixtures send the tokens",
    **dict.fromkeys(
        (
            *("overlap", "compare_with", "dump_tensors", "check_nan_inf", "fp16"),
            *("offload_optimizer", "offload_activations", "sharding_parallel_config"),
        ),
        ", which was not tested with it",
    ),
}
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
    check_parallel(run)


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


def _stages_2_and_3(run: Namespace) -> set[str]:
    """The stages in ``--sharding`` that split gradients."""
    return {"stage2", "stage3"} & set(run.sharding.split())


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
    if run.processes > 1 and (stages := _stages_2_and_3(run)):
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


def check_parallel(run: Namespace) -> None:
    """Raise UserError if the parallel degrees in ``run`` do not fit ``run.processes``.

    In a single process the degrees have no effect, which the run reports (``no_effect``).
    """
    if run.processes == 1:
        return
    for name in UNSUPPORTED_PARALLELISM:
        if (value := getattr(run, name) or 0) is True or value > 1:
            raise UserError(
                f"--{name} is {value}, but this script does not support that parallelism; use "
                "--expert_parallel_degree to distribute experts over ranks"
            )
    degrees = {name: getattr(run, name) for name in DEGREES if getattr(run, name) not in (-1, 1)}
    if {"sharding_degree", "sharding_parallel_degree"} <= degrees.keys():
        raise UserError(
            "--sharding_degree is the old name of --sharding_parallel_degree; use only the new name"
        )
    for name, degree in degrees.items():
        if degree < 1:
            raise UserError(f"--{name} is {degree}, but must be 1 or more")
        if name.startswith("sharding") and not run.sharding:
            # PaddleNLP would only warn, and these processes would train separate models.
            raise UserError(
                f"--{name} is {degree}, but --sharding does not select what to split; set --sharding stage1, "
                f"stage2 or stage3 as well, or remove --{name}"
            )
    product = math.prod(degrees.values())
    if run.processes % product:
        factors = " times ".join(f"--{name} {degree}" for name, degree in degrees.items())
        equals = f", {product}," if len(degrees) > 1 else ""
        raise UserError(
            f"{factors}{equals} does not divide the {run.processes} processes of this run; use degrees "
            f"whose product divides {run.processes}, or start a multiple of {product} processes"
        )
    _check_machines(degrees.get("tensor_parallel_degree", 1), machines.read())
    if degrees.keys() & set(SPLIT_SEQUENCES):
        check_split_sequences(run, degrees)
    if run.expert_parallel_degree not in (-1, 1):
        _check_expert_parallel(run, degrees)
    if run.enable_auto_parallel:
        if run.overlap:
            raise UserError(
                f"--overlap {run.overlap} is for the layers of --tensor_parallel_degree without "
                "--enable_auto_parallel; remove one of the two (in Python, "
                "llm_npu.parallel.overlap.apply_overlap accepts a model of distributed tensors)"
            )
        schedules.check_auto_parallel(run)
        return
    _check_sharding(run, degrees, run.processes > product)
    schedules.check(run, degrees.get("pipeline_parallel_degree", 1))


def _check_machines(degree: int, of_run: machines.Machines) -> None:
    """Check that tensor parallel groups, the innermost mesh axis, stay within one machine."""
    crossing = of_run.crossed_by(degree)
    if crossing is None:
        return
    fitting = math.gcd(*(len(machine.ranks) for machine in of_run.all))
    raise UserError(
        f"--tensor_parallel_degree is {degree}, which puts ranks {crossing[0]} to {crossing[-1]} into one "
        f"group, but these ranks span several machines: {', '.join(map(str, of_run.all))}; specify a degree "
        f"that divides {fitting}, and --pipeline_parallel_degree or --sharding to split the model across "
        "machines"
    )


def _reject_flags(run: Namespace, degree: str, reasons: dict[str, str]) -> None:
    """Reject the flags in ``reasons``, {flag: why}, beside ``degree``."""
    for flag, why in reasons.items():
        if getattr(run, flag):
            raise UserError(f"{degree} does not work with --{flag}{why}; remove one of the two")


def _reject_paddleformers(feature: str) -> None:
    if library.installed_or_none() == library.PADDLEFORMERS:
        raise UserError(
            f"{feature} of PaddleNLP's models, but this environment has PaddleFormers; remove it, or train "
            "in an environment with PaddleNLP"
        )


def check_split_sequences(run: Namespace, degrees: dict[str, int]) -> None:
    """Reject what ``llm_npu.parallel.sequence`` does not support, or what was not tested with it."""
    degree = " and ".join(f"--{name} {degrees[name]}" for name in SPLIT_SEQUENCES if name in degrees)
    # PaddleFormers' trainer splits the batches, but no model exchanges heads.
    _reject_paddleformers(f"{degree} splits the sequences")
    _reject_flags(run, degree, WITHOUT_SPLIT_SEQUENCES)
    if stages := _stages_2_and_3(run):
        raise UserError(
            f"--sharding {stages.pop()} does not sum gradients over the ranks of {degree}, so their weights "
            "would drift apart; set --sharding stage1"
        )
    if options := run.sharding_parallel_config or run.tensor_parallel_config:
        raise UserError(f"{degree} was not tested with the options {options!r}; remove them")
    if "pipeline_parallel_degree" in degrees:
        raise UserError(
            f"{degree} needs positions in every stage, which --pipeline_parallel_degree does not send; use "
            "--tensor_parallel_degree or --sharding stage1"
        )
    if run.stage == "dpo":
        raise UserError(
            f"{degree} splits rows of text, but --stage dpo needs both answers of a pair on a rank"
        )
    if run.disable_fused_options or not run.use_npu_fusion_attention:
        raise UserError(
            f"{degree} needs the fused attention, which the ranks compute together; leave "
            "use_npu_fusion_attention on"
        )
    if not run.split_inputs_sequence_dim:
        raise UserError(f"{degree} always splits its batches; remove --split_inputs_sequence_dim")
    shares = degrees.get("sep_parallel_degree", 1)
    if run.sequence_parallel:
        shares *= degrees.get("tensor_parallel_degree", 1)
    parts, ring = shares, degrees.get("context_parallel_degree", 1)
    if ring > 1:  # each of its ranks has two chunks
        parts = ring * math.lcm(2, shares)
    if run.max_seq_length % parts:
        raise UserError(
            f"{degree}{' with --sequence_parallel' * run.sequence_parallel} splits sequences into {parts} "
            f"parts, but --max_seq_length is {run.max_seq_length}; specify a multiple of {parts}"
        )


def _check_expert_parallel(run: Namespace, degrees: dict[str, int]) -> None:
    """Reject what ``llm_npu.parallel.experts`` does not support, or what was not tested with it."""
    degree = f"--expert_parallel_degree {run.expert_parallel_degree}"
    if run.expert_parallel_degree < 1 or run.processes % run.expert_parallel_degree:
        raise UserError(
            f"{degree} does not divide the {run.processes} processes of this run, which have samples of "
            "their own; specify a divisor, or start a multiple of that number of processes"
        )
    _reject_paddleformers(f"{degree} distributes the experts")
    _reject_flags(run, degree, WITHOUT_EXPERT_PARALLEL)
    if stages := _stages_2_and_3(run):
        raise UserError(
            f"--sharding {stages.pop()} splits the gradients of all parameters over all ranks, but with "
            f"{degree} ranks have different experts; set --sharding stage1"
        )
    for name, value in degrees.items():
        if not name.startswith("sharding") or value != run.processes:
            raise UserError(
                f"{degree} was tested with data parallelism and --sharding stage1 of all processes only; "
                f"remove --{name}"
            )
    if not run.use_fused_moe:
        raise UserError(f"{degree} needs the fused mixtures, which send the tokens; leave use_fused_moe on")
    if run.stage == "dpo" or run.finetuning_type != "full":
        flag = "--stage dpo" if run.stage == "dpo" else f"--finetuning_type {run.finetuning_type}"
        raise UserError(f"{degree} was not tested with {flag}; remove one of the two")


def _check_sharding(run: Namespace, degrees: dict[str, int], replicated: bool) -> None:
    """Reject early what PaddleNLP's Trainer would assert only when it wraps the model.

    ``replicated``: whether there are more processes than the product of the degrees.
    """
    stages = _stages_2_and_3(run)
    if "offload" in run.sharding.split():
        raise UserError(
            f'--sharding is "{run.sharding}", but Paddle\'s offload of sharded states does not support '
            "AdamW's master weights on this device; set --sharding stage1 --offload_optimizer"
        )
    if "stage3" in stages and "tensor_parallel_degree" in degrees:
        raise UserError(
            f"{names.TITLE} does not support --sharding stage3 with --tensor_parallel_degree; use stage1, "
            "stage2, or one of the two flags only"
        )
    flag = next((name for name in degrees if name.startswith("sharding")), None)
    if stages and flag and replicated and run.amp_master_grad:
        raise UserError(
            f"--sharding {run.sharding} with float32 gradients (--amp_master_grad) needs all processes in "
            f"{names.TITLE}; remove --{flag}, or set --sharding stage1"
        )
