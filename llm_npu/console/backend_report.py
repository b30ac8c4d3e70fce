"""The backend report: the predicted backend of each fused operator, checked after the first step.

    run.attach(backend_report.BackendReport())

The prediction asks the dispatcher. The check after the first step compares it with the calls that ran
(``paddle_fused.dispatch_log``) and, on the virtual NPU, with the device's own record of launched kernels.
With several ranks the table covers the layers of all ranks (pipeline stages differ), and each rank is
checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

import paddle_fused
import virtual_npu
from llm_npu.core import ranks
from llm_npu.core.console import say
from llm_npu.data.collate import ROWS
from llm_npu.surgery.batch import Batch
from llm_npu.surgery.explain import UPSTREAM, Line, explain, grouped, of_call, table
from llm_npu.surgery.names import ranges
from llm_npu.surgery.report import Report
from llm_npu.training.run import Feature, Run
from llm_npu.training.upstream_trainer import TrainerCallback, optimizer_wrappers
from paddle_fused import masks
from virtual_npu import KernelRecord

TITLE, INDENT = "backend  ", "         "
OPTIMIZER = "optimizer"  # its name in the layer column
# Modes that match are single kernels of a fused operator; other modes are compositions of kernels.
KERNEL = re.compile(r"(pf_\w+|\w+_npu|fused_rope|swiglu|adamw)\b")
T = TypeVar("T")


class BackendReport(Feature):
    """The backend report of a run with fused operators."""

    def takes_part(self, run: Run) -> bool:
        return any(run.arguments.fused.switches().values())

    def on_trainer(self, run: Run) -> None:
        run.trainer.add_callback(WhyLog(run))


class WhyLog(TrainerCallback):
    """Prints the table when training begins, and checks it after the first update.

    The dispatch log must be empty when training begins. Every rank of the run needs this callback.
    """

    def __init__(self, run: Run):
        self._run = run
        self._announced: list[Line] | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        run = self._run
        fused, report = run.arguments.fused, run.fused or Report(type(run.model).__name__, [])
        lines = explain(run.model, report, batch_of(run.trainer), fused.of_layers(), run.switched_off)
        lines += optimizer_lines(
            run.trainer.optimizer, run.model.parameters(), fused.use_fused_adamw, args.amp_master_grad
        )
        self._announced = grouped(lines)  # of this process only, which is all it can check
        _say(table(grouped(dict.fromkeys(chain(*self._of_all_ranks(lines))))))

    def on_step_end(self, args, state, control, **kwargs):
        if self._run.trainer.recorder.step.skipped:
            return  # no optimizer kernels ran; check after the first update instead
        if self._announced is not None:
            launches = virtual_npu.kernel_record() if virtual_npu.is_active() else []
            report = proof(self._announced, paddle_fused.dispatch_log(), launches)
            _say(by_rank(self._of_all_ranks(report)))
        self._announced = None

    def _of_all_ranks(self, own: T) -> list[T]:
        """Gather from all ranks in rank order. Collective. A dry run has one process at a time."""
        return [own] if self._run.device.dry else ranks.gathered(own)


def optimizer_lines(optimizer, parameters, is_fused: bool, master_grad: bool) -> list[Line]:
    """The optimizer's lines of the table, one for each dtype of the model's parameters.

    (With ``dist.to_static`` the optimizer has no list of parameters.)
    """
    if not is_fused:
        return [Line(OPTIMIZER, "fused_adamw", UPSTREAM, "", None, "switched off by use_fused_adamw")]
    steps = [*optimizer_wrappers(optimizer)][-1].example_steps(parameters, master_grad)
    return list(dict.fromkeys(of_call(OPTIMIZER, "fused_adamw", step) for step in steps))


def by_rank(lines_of_ranks: Sequence[list[str]]) -> list[str]:
    """Merge the lines of all ranks: once if equal, else prefixed with their ranks."""
    having: dict[tuple[str, ...], list[int]] = {}
    for rank, lines in enumerate(lines_of_ranks):
        having.setdefault(tuple(lines), []).append(rank)
    if len(having) == 1:
        return lines_of_ranks[0]
    return [
        f"{'rank' if len(numbers) == 1 else 'ranks'} {ranges(numbers)}: {line}"
        for lines, numbers in having.items()
        for line in lines
    ]


def _say(lines: Sequence[str]) -> None:
    for position, line in enumerate(lines):
        say((INDENT if position else TITLE) + line)


def batch_of(trainer) -> Batch:
    """The first batch of the trainer, as passed to the layers."""
    args = trainer.args
    samples = [trainer.train_dataset[i] for i in range(args.per_device_train_batch_size)]
    batch = trainer.data_collator(samples)
    mask = batch.get("attention_mask")
    if ROWS in batch:
        mask = masks.row_indices(batch[ROWS])
    rows, length = batch["input_ids"].shape
    return Batch(
        rows,
        length,
        "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
        mask if isinstance(mask, masks.Mask) else None,
        batch.get("position_ids"),
        bool(args.recompute) and getattr(args, "recompute_granularity", "full") == "full",
    )


def proof(announced: Sequence[Line], ran: list, launches: list[KernelRecord]) -> list[str]:
    """Check whether the operators of the table ran as predicted.

    The prediction is wrong if the log has an unpredicted call, lacks a predicted call, or names a kernel that
    the device did not launch.

    Args:
        announced: The lines of the table.
        ran: ``dispatch_log`` since before the first step.
        launches: The device's kernel record; empty without one.
    """
    expected = {
        (line.operator, line.backend, line.mode): line for line in announced if line.computed is not None
    }
    operators = {operator for operator, _, _ in expected}
    of_table = [call for call in ran if call.operator in operators]
    recorded = {(call.operator, call.backend, call.mode) for call in of_table}
    lines = []
    for call in of_table:
        if (call.operator, call.backend, call.mode) not in expected:
            refused = "".join(f"; not {name}: {reason}" for name, reason in call.refused.items())
            lines.append(
                f"not as predicted: {call.operator} {call.dtype} by {call.backend} {call.mode}, "
                f"{call.count:,} calls{refused}"
            )
    lines += [
        f"in the table but not called in this step: {operator} by {backend} {mode}"
        for operator, backend, mode in expected.keys() - recorded
    ]
    launched: Counter[str] = Counter()
    for launch in launches:
        launched[launch.name] += launch.calls
    for operator, backend, mode in expected.keys() & recorded if launches else ():
        kernel = _kernel(mode)
        if kernel and not launched[kernel]:
            lines.append(
                f"in the dispatch log but not launched by the device: {operator} by {backend} {mode}"
            )
    calls: Counter[tuple[str, str]] = Counter()
    for call in of_table:
        calls[call.operator, call.backend] += call.count
    counted = ", ".join(f"{operator} by {name} {count:,}" for (operator, name), count in calls.items())
    verdict = "first step not as predicted" if lines else "first step as predicted"
    return [f"{verdict}; calls: {counted or 'none'}", *_recorded(of_table, launched), *lines]


def _kernel(mode: str) -> str | None:
    """The kernel's name in this mode; None for a composition."""
    named = KERNEL.match(mode)
    return named[1] if named else None


def _recorded(ran: list, launched: Counter[str]) -> list[str]:
    """The number of launches of each kernel in the dispatch log."""
    kernels = dict.fromkeys(call.mode.partition(",")[0].partition(" ")[0] for call in ran)
    seen = [f"{name} {launched[name]:,}" for name in kernels if launched[name]]
    return [f"kernels launched by the device: {', '.join(seen)}"] if seen else []
