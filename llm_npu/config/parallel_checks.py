"""Checks for parallel degrees that do not fit the processes, or that do not work with other flags.

``run`` holds the value of every flag by name. Schedules of pipelines have their own checks (``schedules``).
"""

from __future__ import annotations

import math
from argparse import Namespace

from llm_npu.core import machines
from llm_npu.core.errors import UserError
from llm_npu.models import library
from llm_npu.models.library import names

from . import schedules

# PaddleNLP's parallelism over experts, replaced here by --expert_parallel_degree.
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
# Flags that expert parallelism does not support, and why.
WITHOUT_EXPERT_PARALLEL = {
    "enable_auto_parallel": ", whose programs do not read the number of tokens that ranks exchange",
    "disable_fused_options": ", because the fused MoE layers dispatch the tokens",
    **dict.fromkeys(
        (
            *("overlap", "compare_with", "dump_tensors", "check_nan_inf", "fp16"),
            *("offload_optimizer", "offload_activations", "sharding_parallel_config"),
        ),
        ", which was not tested with it",
    ),
}


def check(run: Namespace) -> None:
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
        check_expert_parallel(run, degrees)
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


def stages_2_and_3(run: Namespace) -> set[str]:
    """The stages in ``--sharding`` that split gradients."""
    return {"stage2", "stage3"} & set(run.sharding.split())


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
    """Reject the flags in ``reasons``, {flag: why}, in combination with ``degree``."""
    for flag, why in reasons.items():
        if getattr(run, flag, None):  # a flag of one library
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
    if stages := stages_2_and_3(run):
        raise UserError(
            f"--sharding {stages.pop()} does not sum gradients over the ranks of {degree}, so their weights "
            "would diverge; set --sharding stage1"
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


def check_expert_parallel(run: Namespace, degrees: dict[str, int]) -> None:
    """Reject what ``llm_npu.parallel.experts`` does not support, or what was not tested with it."""
    degree = f"--expert_parallel_degree {run.expert_parallel_degree}"
    stages, tensor = (degrees.get(f"{name}_parallel_degree", 1) for name in ("pipeline", "tensor"))
    if run.expert_parallel_degree < 1 or run.processes // stages % run.expert_parallel_degree:
        of = f"of each of {stages} pipeline stages" if stages > 1 else "of this run"
        raise UserError(
            f"{degree} does not divide the {run.processes // stages} processes {of}, which have tokens of "
            "their own; specify a divisor, or start a multiple of that number of processes"
        )
    _reject_flags(run, degree, WITHOUT_EXPERT_PARALLEL)
    if sharding := stages_2_and_3(run):
        raise UserError(
            f"--sharding {sharding.pop()} splits the gradients of all parameters over all ranks, but with "
            f"{degree} each rank owns other experts; set --sharding stage1"
        )
    if tensor > 1 and not run.sequence_parallel:
        raise UserError(
            f"{degree} sends the tokens of each rank to their experts, but the ranks of "
            f"--tensor_parallel_degree {tensor} have the same tokens; set --sequence_parallel true"
        )
    others = math.prod(value for name, value in degrees.items() if not name.startswith("sharding"))
    for name, value in degrees.items():
        if name.startswith("sharding") and value * others != run.processes:
            raise UserError(
                f"{degree} was tested only with --sharding stage1 over all data-parallel processes, "
                f"here {run.processes // others}, but --{name} is {value}; remove --{name}"
            )
    if not run.use_fused_moe:
        raise UserError(
            f"{degree} needs the fused MoE layers, which dispatch the tokens; leave use_fused_moe on"
        )
    if run.stage == "dpo" or run.finetuning_type != "full":
        flag = "--stage dpo" if run.stage == "dpo" else f"--finetuning_type {run.finetuning_type}"
        raise UserError(f"{degree} was not tested with {flag}; remove one of the two")


def _check_sharding(run: Namespace, degrees: dict[str, int], replicated: bool) -> None:
    """Reject early what PaddleNLP's Trainer would assert only when it wraps the model.

    ``replicated``: whether there are more processes than the product of the degrees.
    """
    stages = stages_2_and_3(run)
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
