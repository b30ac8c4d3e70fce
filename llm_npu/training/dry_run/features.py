"""A dry run of training: nothing is computed; memory and device calls are recorded.

    VIRTUAL_NPU_DRY=1 VIRTUAL_NPU_JOURNAL=step.jsonl \\
        python scripts/run_llama_npu.py --model_name_or_path llama2-7b --max_steps 1 ...

The program, its shapes, allocations and calls are real. Its numbers are meaningless: there is no loss, text,
checkpoint or measured speed. ``llm_npu.training.dry_run.journal`` reads the journal.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import numpy as np
import paddle
from paddle.distributed import fleet

import virtual_npu
from llm_npu.core import ranks
from llm_npu.core.console import mib, say
from llm_npu.core.errors import UserError
from llm_npu.core.peak_flops import MEASURED
from llm_npu.launch import fake_process_group
from llm_npu.models import own_experts
from llm_npu.models.families import FAMILIES
from llm_npu.training.run import Feature, Run
from llm_npu.training.upstream_trainer import TrainerCallback
from paddle_fused import paddle_release
from virtual_npu import call_marks

from . import FOLDER, journal, transfers

NOTE = "dry run: nothing is computed. Losses, texts, speeds and checkpoints are meaningless"
EVEN = "dry run: routing to experts is assumed to be balanced"
SHOWN = 8
TERA = 1e12


class Journal(Feature):
    """Marks the steps if there is a journal (VIRTUAL_NPU_JOURNAL) or --check_device has sync."""

    def takes_part(self, run: Run) -> bool:
        counts_waits = run.device.kind == "virtual" and "sync" in virtual_npu.checks()
        return counts_waits or virtual_npu.journal_file() is not None

    def on_trainer(self, run: Run) -> None:
        run.trainer.add_callback(StepMarks())


class DryRun(Feature):
    """Discards the results of steps, and reports their memory and operations (VIRTUAL_NPU_DRY)."""

    def takes_part(self, run: Run) -> bool:
        return run.device.dry

    def configure(self, run: Run) -> None:
        """Raise UserError for settings that depend on values or measured times, which a dry run lacks."""
        training = run.arguments.training
        if training.enable_auto_parallel and training.pipeline_parallel_degree > 1:
            raise UserError(
                "--enable_auto_parallel with --pipeline_parallel_degree is not supported in a dry run "
                "(VIRTUAL_NPU_DRY=1), which would run only the first stage; remove one of the two"
            )
        if training.moe_expert_capacity_factor is not None:
            raise UserError(
                "--moe_expert_capacity_factor drops tokens by their probabilities, but a dry run "
                "(VIRTUAL_NPU_DRY=1) computes none and assumes balanced routing; remove it"
            )
        if training.peak_tflops == MEASURED:
            raise UserError(
                "--peak_tflops measured needs measured times, but a dry run (VIRTUAL_NPU_DRY=1) computes "
                "nothing; remove it"
            )

    def on_model(self, run: Run) -> None:
        run.notes.append(NOTE)
        transfers.record_as_collectives()
        if FAMILIES[run.model_config.model_type].experts:
            choose_evenly()
            run.notes.append(EVEN)

    def on_trainer(self, run: Run) -> None:
        trainer = run.trainer
        trainer.remove_callback(type(trainer.recorder))
        trainer.add_callback(DisableOutputs())
        trainer.keep_results = lambda: None
        trainer.args.output_dir = str(Path(trainer.args.output_dir) / FOLDER)  # keep existing checkpoints

    def report(self, run: Run) -> None:
        """Report; with pipeline parallelism, one process of each stage does."""
        virtual_npu.flush_journal()
        say()
        if ranks.count() > 1:
            say(f"rank     {ranks.number()} of {ranks.count()}, representing all ranks with the same work")
        say(f"dry run  {run.trainer.state.global_step} steps recorded, nothing computed")
        say(f"memory   peak {mib(paddle_release.max_memory_allocated(paddle.device.get_device()))}")
        file = virtual_npu.journal_file()
        if file is not None:
            for line in _summary(journal.read(file)):
                say(line)
            if ranks.count() == 1:  # else all_ranks, which may keep them for itself
                say(f"files    {file}")


class StepMarks(TrainerCallback):
    """Writes the purpose of each process group, and the start and end of each step."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        device = int(paddle.device.get_device().rpartition(":")[2])
        groups = _groups()
        if share := own_experts.share_of_model(model):
            groups["experts"] = share.group
        for use, group in groups.items():
            if group is not None and group.nranks > 1 and group.process_group is not None:
                name = group.process_group.get_comm_name(device)  # of this process
                virtual_npu.mark_journal(f"{journal.GROUP} {name} {use}")
                call_marks.name_communicator(group.process_group)

    def on_step_begin(self, args, state, control, **kwargs):
        virtual_npu.begin_step()

    def on_step_end(self, args, state, control, **kwargs):
        virtual_npu.end_step()


def _groups() -> dict:
    """fleet's groups by purpose."""
    hcg = getattr(fleet.fleet, "_hcg", None)
    if hcg is None:
        return {}
    groups = {
        "tp": hcg.get_model_parallel_group(),
        "pp": hcg.get_pipe_parallel_group(),
        "sharding": hcg.get_sharding_parallel_group(),
        "dp": hcg.get_data_parallel_group(),
    }
    if hcg.get_sep_parallel_world_size() > 1:
        groups["sep"] = hcg.get_sep_parallel_group()
    return groups


class DisableOutputs(TrainerCallback):
    """Disables logs, evaluation and checkpoints: their numbers would be meaningless."""

    def on_train_begin(self, args, state, control, **kwargs):
        pipeline = _groups().get("pp")
        if ranks.is_first() and pipeline is not None and pipeline.nranks > 1:
            fake_process_group.announce(pipeline.ranks)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_log = control.should_evaluate = control.should_save = False


def _summary(content: journal.Journal) -> list[str]:
    if not content.steps:
        return []
    step = content.steps[-1]
    counts = Counter(call.name for call in step.calls)
    names = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(SHOWN))
    lines = [f"step     {len(step.calls):,} operators, {step.flops / TERA:,.2f} TFLOP: {names}"]
    sums: Counter[tuple[str, str]] = Counter()
    for collective in step.collectives:
        sums[collective.kind, f"{collective.group} {collective.ranks}"] += collective.payload
    lines += [f"sent     {kind} among {group}: {mib(size)}" for (kind, group), size in sorted(sums.items())]
    return lines


@functools.cache
def choose_evenly() -> None:
    """From now on, routing is balanced: all experts get the same number of tokens.

    A dry run computes no scores, so the sizes that depend on a router's choice are unknown. ``paddle.topk``
    and ``Tensor.topk`` assume that token t has the K experts (t K + k) mod E, k = 0 to K - 1, of E experts.
    Their values stay unknown.
    """
    upstream = paddle.topk

    @functools.wraps(upstream)
    def topk(x, k, *args, **kwargs):
        values, indices = upstream(x, k, *args, **kwargs)
        choice = np.arange(indices.size) % x.shape[-1]
        indices.set_value(choice.reshape(indices.shape))
        return values, indices

    paddle.topk = paddle.Tensor.topk = topk
