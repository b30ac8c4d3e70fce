"""Train a Llama, Qwen2, Mistral, Mixtral or Qwen2-MoE with PaddleNLP and fused operators on an Ascend NPU,
or on a virtual NPU if there is no card. With PaddleFormers: a Llama, Qwen2, Qwen3, ERNIE-4.5 and others.

    llm-npu train                         # a small Llama on the text of Python's library
    llm-npu train --config demo.yaml --model_type qwen2 --use_fused_rope false
    llm-npu train --resume_from_checkpoint
    llm-npu train --nproc 2 --tensor_parallel_degree 2 --sequence_parallel true
    llm-npu train --help

Exit codes: 0 done; 2 bad input, with an error on stderr; 130 after Ctrl-C, 143 after SIGTERM and 129 after
SIGHUP, with a checkpoint of the last finished step. docs/reference/exit_codes.md lists all codes, including
those of lost ranks.
"""

import os
import socket
from pathlib import Path

import virtual_npu
from llm_npu import config, device, launch, profiling
from llm_npu.commands import PROGRAM
from llm_npu.core import console, machines
from llm_npu.core.errors import UserError
from llm_npu.doctor import Setup, explain
from llm_npu.doctor.checks import ascend, hccl
from llm_npu.models import library
from llm_npu.numerics import reproducible
from llm_npu.training.dry_run import FOLDER, all_ranks
from paddle_fused import host_memory


def main(argv: list[str]) -> int:
    # Before Paddle is imported: reject bad flags, select the device (it determines Paddle's plugin),
    # and set the environment variables that Paddle, the plugin and the libraries below read.
    arguments = config.read(argv)
    early = arguments.early
    chosen = device.select(early.device, early.check_device)
    reproducible.prepare(early.deterministic, chosen)
    if early.starts_ranks and chosen.dry:
        return all_ranks.start([PROGRAM, "train", *early.argv], early.nproc, early.output_dir / FOLDER)
    if early.starts_ranks:
        return launch.start([PROGRAM, "train"], early, chosen, explain.of_rank)
    launch.prepare_rank(early, chosen)
    if early.profile_dir:
        profiling.prepare(early.profile_dir)
    with launch.watch_machines():
        check_hccl_variables(chosen)
        report_card(chosen)
        return train(arguments, chosen)


def train(arguments: config.Arguments, chosen: device.Device) -> int:
    """Import Paddle, build the run and train; returns the exit code."""
    console.import_frameworks(library.installed())
    from llm_npu import patches
    from llm_npu.training.run import Run

    patches.apply()
    if chosen.kind != "card":
        host_memory.keep_freed_memory()
    virtual_npu.stop_aicpu_warnings()  # --check_dtypes reports them
    launch.prepare_dry_run(chosen)
    run = Run(arguments.build(), arguments.early, chosen)
    run.attach(*features())
    run.build()
    run.train()
    return run.report()


def check_hccl_variables(chosen: device.Device) -> None:
    """Raise UserError, with this machine's name, if an HCCL variable is wrong; a card would time out.

    The first rank of each machine checks this before Paddle is imported, also on the virtual NPU.
    """
    if chosen.kind == "cpu" or not machines.read().is_first_rank_of_machine:
        return
    setup = Setup(os.environ, device_name="virtual_npu" if chosen.kind == "virtual" else "npu:card")
    for finding in hccl.values(setup):
        if finding.level == "error":
            raise UserError(f"{finding.message} (on {socket.gethostname()}). {finding.fix}")


def report_card(chosen: device.Device, root: Path = Path("/")) -> None:
    """Before Paddle is imported, print the functions that the plugin calls and the card's CANN lacks.

    Missing functions are warnings, not errors, because a run may never call them.
    Also reports a forwarding ``libopapi.so`` in use. The first rank of each machine prints.
    """
    if chosen.kind != "card" or not machines.read().is_first_rank_of_machine:
        return
    for finding in ascend.operators(Setup(os.environ, device_name="npu:card", root=root)):
        prefix = "" if finding.level == "ok" else "warning: "
        console.say(f"{prefix}{finding.message}{'. ' + finding.fix if finding.fix else ''}")


def features() -> list:
    """All features of a run, in output order; ``Run.attach`` keeps those that the arguments enable."""
    from llm_npu.cluster.machine_check import MachineCheck
    from llm_npu.console.backend_report import BackendReport
    from llm_npu.console.results import Results, Summary
    from llm_npu.dtypes.callback import DtypeFeature
    from llm_npu.numerics.options import (
        AclErrors,
        Comparison,
        Deterministic,
        NanInfCheck,
        TensorDump,
        VerifiedOperators,
    )
    from llm_npu.parallel.experts import ExpertParallel
    from llm_npu.parallel.features import AutoParallel, Overlap, Pipeline
    from llm_npu.parallel.sequence import SplitSequences
    from llm_npu.profiling.steps import Profile
    from llm_npu.training.device_checks import DeviceChecks
    from llm_npu.training.dpo import DPO
    from llm_npu.training.dry_run.features import DryRun, Journal
    from llm_npu.training.expert_capacity import ExpertCapacity

    trainers = [DPO(), AutoParallel(), Pipeline(), SplitSequences(), ExpertParallel()]
    trainers += [ExpertCapacity(), Overlap()]
    reports = [MachineCheck(), Deterministic(), DeviceChecks(), Journal(), DryRun(), Summary(), Results()]
    reports += [BackendReport()]
    observers = [Profile(), Comparison(), TensorDump(), NanInfCheck(), DtypeFeature()]
    observers += [VerifiedOperators(), AclErrors()]
    return [*trainers, *reports, *observers]
