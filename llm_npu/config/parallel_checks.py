"""How the processes of a run are shared out, checked before PaddleNLP sets up its groups of them."""

from __future__ import annotations

import math
import os

# PaddleNLP's other ways to share a run, which leave a process with a part of each row or some of the experts.
OTHER_WAYS = (
    "sep_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
    "expert_tensor_parallel_degree",
    "use_expert_parallel",
)
DEGREES = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "sharding_degree",
    "sharding_parallel_degree",
)


def process_count() -> int:
    """How many processes a launcher says that this run has; 1 without a launcher."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM") or 1)


def check_parallel(values: dict, processes: int) -> None:
    """ValueError with one sentence when ``processes`` cannot share a run as ``values`` ask for.

    ``values``: argument -> value. One process shares nothing: there they have no effect, which
    ``llm_npu.config.ineffective`` says.
    """
    if processes == 1:
        return
    for name in OTHER_WAYS:
        if (value := values[name] or 0) is True or value > 1:
            raise ValueError(
                f"--{name} is {value}, but this script does not share a run so; give "
                "--tensor_parallel_degree, --sequence_parallel, --pipeline_parallel_degree or --sharding"
            )
    degrees = {name: values[name] for name in DEGREES if values[name] not in (-1, 1)}
    if {"sharding_degree", "sharding_parallel_degree"} <= degrees.keys():
        raise ValueError(
            "--sharding_degree is the old name of --sharding_parallel_degree; give the new one only"
        )
    for name, degree in degrees.items():
        if degree < 1:
            raise ValueError(f"--{name} is {degree}, but must be 1 or more")
        if name.startswith("sharding") and not values["sharding"]:
            # PaddleNLP would warn, and each of these processes train a model of its own.
            raise ValueError(
                f"--{name} is {degree}, but --sharding does not say what to split; give --sharding stage1, "
                f"stage2 or stage3 as well, or leave --{name} out"
            )
    product = math.prod(degrees.values())
    if processes % product:
        given = " times ".join(f"--{name} {degree}" for name, degree in degrees.items())
        equals = f", {product}," if len(degrees) > 1 else ""
        raise ValueError(
            f"{given}{equals} does not divide the {processes} processes of this run; give degrees whose "
            f"product divides {processes}, or start a multiple of {product} processes"
        )
    if values["enable_auto_parallel"]:
        if values["overlap"]:
            raise ValueError(
                f"--overlap {values['overlap']} is for the layers of --tensor_parallel_degree without "
                "--enable_auto_parallel; leave one of the two out (in Python, "
                "llm_npu.parallel.overlap.apply_overlap takes a model of distributed tensors)"
            )
        return
    _check_sharding(values, degrees, processes > product)
    _check_interleaved(values, degrees.get("pipeline_parallel_degree", 1))


def _check_sharding(values: dict, degrees: dict[str, int], replicated: bool) -> None:
    """What PaddleNLP's Trainer would assert when it wraps the model, after everything has been built.

    ``replicated``: there are more processes than the degrees name.
    """
    stages = {"stage2", "stage3"} & set(values["sharding"].split())
    if "stage3" in stages and "tensor_parallel_degree" in degrees:
        raise ValueError(
            "--sharding stage3 does not go with --tensor_parallel_degree in PaddleNLP; give stage1, stage2, "
            "or one of the two arguments only"
        )
    given = next((name for name in degrees if name.startswith("sharding")), None)
    if stages and given and replicated and values["amp_master_grad"]:
        raise ValueError(
            f"--sharding {values['sharding']} with gradients in float32 (--amp_master_grad) takes all "
            f"processes in PaddleNLP; leave --{given} out, or give --sharding stage1"
        )


def _check_interleaved(values: dict, stages: int) -> None:
    """What Paddle asserts of a pipeline whose stages have several parts, after everything has been built."""
    parts, micro_batches = values["virtual_pp_degree"] or 1, values["gradient_accumulation_steps"]
    if parts <= 1 or stages == 1:  # without stages it has no effect
        return
    if stages < 3:
        raise ValueError(
            f"--virtual_pp_degree is {parts}, which takes a pipeline of 3 stages or more; "
            f"--pipeline_parallel_degree is {stages}"
        )
    if micro_batches != stages and micro_batches < 2 * stages:
        raise ValueError(
            f"with --virtual_pp_degree {stages} stages take {stages} micro batches, or {2 * stages} and "
            f"more; --gradient_accumulation_steps is {micro_batches}"
        )
