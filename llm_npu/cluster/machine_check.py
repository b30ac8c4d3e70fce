"""Compares the machines of a run before its first step."""

from __future__ import annotations

import os

from llm_npu.core import machines, ranks
from llm_npu.core.errors import ErrorOfAllRanks
from llm_npu.doctor import Setup
from llm_npu.training import resume
from llm_npu.training.run import Feature, Run

from . import comparison

# Arguments that must be equal in addition to ``run.json``: they affect what a rank does in a step.
EQUAL_ARGUMENTS = (
    "sharding",
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "sequence_parallel",
    "recompute",
    "logging_steps",
    "save_strategy",
    "save_steps",
    "evaluation_strategy",
    "eval_steps",
    "max_evaluate_steps",
    "per_device_eval_batch_size",
    "nonfinite",
    "async_save",
    "deterministic",
)


class MachineCheck(Feature):
    """On several machines, compares them after the data is read and before the model is built.

    The first rank of each machine gathers its facts. If facts that must be equal differ, all ranks raise
    UserError; rank 0's message contains the table. Disabled in a run on one machine.
    """

    def takes_part(self, run: Run) -> bool:
        return len(machines.read().all) > 1

    def on_data(self, run: Run) -> None:
        here = machines.read()
        own = None
        with ranks.Ranks.of_run().raise_on_all_ranks():
            if here.is_first_rank_of_machine:
                setup = Setup(os.environ, device_name=run.early.device, output_dir=run.early.output_dir)
                own = comparison.gather(setup, of_run(run))
        ranks.wait()  # read the clocks at the same time
        facts = ranks.gathered(own and own.now())
        by_name = comparison.by_name(here.all, [facts[machine.ranks[0]] for machine in here.all])
        if table := comparison.table(by_name):
            raise ErrorOfAllRanks(
                f"the machines of this run differ; make them equal, or exclude some:\n{table}"
                if ranks.is_first()
                else f"the machines of this run differ; the table is in the log of rank 0, on {here.all[0]}."
            )
        run.notes.append(comparison.note(by_name))


def of_run(run: Run) -> dict[str, object]:
    """The settings of the run that must be equal: hashes of tokenizer and data, the model, the arguments.

    ``samples`` can differ for equal text if a cache or a .bin has different content.
    """
    training = run.arguments.training
    return {
        **run.settings["fixed"],
        **run.settings["schedule"],
        "samples": run.samples.digest(),
        **{name: getattr(run.model_config, name, None) for name in resume.SHAPING_FIELDS},
        **{name: getattr(training, name) for name in EQUAL_ARGUMENTS},
    }
