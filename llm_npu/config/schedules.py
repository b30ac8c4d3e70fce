"""Checks of the order in which a pipeline computes micro batches: 1F1B, interleaved or DualPipeV."""

from __future__ import annotations

from argparse import Namespace

from llm_npu.core.errors import UserError
from llm_npu.models import library
from llm_npu.models.library import names
from paddle_fused import paddle_release

DUALPIPEV, CHUNKS = "dualpipev", 2  # chunks of layers in each stage of a V
# Flags that were not tested with DualPipeV.
WITHOUT_DUALPIPEV = (
    "pipeline_parallel_config",
    "sharding_parallel_config",
    "tensor_parallel_config",
    "overlap",
    "offload_activations",
    "fp16",
)


def check(run: Namespace, stages: int) -> None:
    """Reject early what Paddle would assert about the schedule of ``stages`` after building everything."""
    if stages == 1:  # no effect without pipeline stages
        return
    schedule, chunks = run.pipeline_schedule, run.virtual_pp_degree or 1
    if schedule == "interleaved" and chunks <= 1:
        raise UserError(
            "--pipeline_schedule interleaved needs several chunks of layers in each stage; set "
            "--virtual_pp_degree 2 or more"
        )
    if schedule in ("1f1b", DUALPIPEV) and chunks > 1:
        raise UserError(
            f"--virtual_pp_degree {chunks} is for --pipeline_schedule interleaved, but the schedule is "
            f"{schedule}; remove one of the two"
        )
    if schedule == DUALPIPEV:
        _check_dualpipev(run, stages)
    elif DUALPIPEV in (getattr(run, "pipeline_parallel_config", "") or ""):
        raise UserError(
            f"--pipeline_parallel_config has {run.pipeline_parallel_config}; set --pipeline_schedule "
            f"{DUALPIPEV} instead of use_{DUALPIPEV}"
        )
    elif chunks > 1:
        _check_interleaved(run, stages, chunks)


def check_auto_parallel(run: Namespace) -> None:
    """Reject a schedule for ``--enable_auto_parallel``."""
    if run.pipeline_schedule is not None and run.pipeline_parallel_degree > 1:
        raise UserError(
            f"--pipeline_schedule {run.pipeline_schedule} is for the pipelines of {names.TITLE}, but "
            "--enable_auto_parallel has its own; remove one of the two"
        )


def _check_dualpipev(run: Namespace, stages: int) -> None:
    schedule = f"--pipeline_schedule {DUALPIPEV}"
    if library.installed_or_none() == library.PADDLEFORMERS:
        raise UserError(
            f"{schedule} is for PaddleNLP's models, but this environment has PaddleFormers; use 1f1b or "
            "interleaved, or train in an environment with PaddleNLP"
        )
    if paddle_release.before(3, 2):
        raise UserError(
            f"{schedule} needs Paddle 3.2 or later; this is {paddle_release.installed_paddle().version}. Use "
            "1f1b or interleaved."
        )
    for flag in WITHOUT_DUALPIPEV:
        if getattr(run, flag):
            raise UserError(f"{schedule} was not tested with --{flag}; remove one of the two")
    if run.disable_fused_options or not run.use_npu_fusion_attention:
        raise UserError(
            f"{schedule} passes no masks between stages, which the unfused attention of {names.TITLE} needs; "
            "leave use_npu_fusion_attention on, or use 1f1b"
        )
    micro_batches = run.gradient_accumulation_steps
    if micro_batches < 2 * stages:
        raise UserError(
            f"{schedule} with {stages} stages needs {2 * stages} micro batches or more, but "
            f"--gradient_accumulation_steps is {micro_batches}; set {2 * stages} or more, or use 1f1b"
        )


def _check_interleaved(run: Namespace, stages: int, chunks: int) -> None:
    micro_batches = run.gradient_accumulation_steps
    if stages < 3:
        raise UserError(
            f"--virtual_pp_degree is {chunks}, which needs a pipeline of at least 3 stages; "
            f"--pipeline_parallel_degree is {stages}"
        )
    if micro_batches != stages and micro_batches < 2 * stages:
        raise UserError(
            f"--virtual_pp_degree with {stages} stages needs {stages} micro batches, or {2 * stages} or "
            f"more; --gradient_accumulation_steps is {micro_batches}"
        )
