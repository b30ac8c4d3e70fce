"""A training step of a Llama: tokens per second, Paddle and torch, float32 and bfloat16.

    python scripts/bench_step.py                       110M parameters, float32 and bfloat16: minutes
    python scripts/bench_step.py --quick               a tiny one, to see that it works
    python scripts/bench_step.py --dtype float32 --json new.jsonl --chart new.png --compare old.jsonl

A step is forward, backward, clipping by the global norm, AdamW. Contenders, each a process of its own:

    fused npu       PaddleNLP's Llama by the fused operators and FusedAdamW on the virtual NPU
    fused cpu       the same on the CPU place (float32 only: Paddle's CPU kernels have no bfloat16)
    paddle          PaddleNLP's Llama and Paddle's AdamW on the CPU place, as they come (float32 only)
    paddle cured    the same with MKL on its AVX2 or AVX-512 path, as the virtual NPU has it; on processors
                    that are not Intel's MKL takes another, three to eight times slower
    torch eager     the same Llama in plain torch with its scaled_dot_product_attention and fused AdamW
    torch compile   through torch.compile

All start from the same weights and see the same tokens; the losses of the first steps must agree. Then those
of a group take turns (A B A B ...): not all at once, for memory. The others stand still meanwhile.
"share" is of the machine's limit: operations of a step / rate of the fastest matrix product, measured first.
Goals compare medians of one group. --malloc on makes the C library keep freed memory, for all alike.

In bfloat16 the Paddle side keeps master weights and moments in float32, torch everything in bfloat16. Where
the processor has no bfloat16 instructions torch would take hours and is left out with that reason.

Exit status: 1 if losses differ or a contender fails, 2 for wrong arguments, 130 after Ctrl-C; a missed
goal is printed.
"""

import statistics
import sys
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import NamedTuple

from benchmarks import contenders, machine, measure, options, report, timing
from benchmarks.cases import Goal
from benchmarks.contenders import contender
from benchmarks.step import LlamaSize
from rich.table import Table

QUICK = LlamaSize(hidden=64, layers=2, vocabulary=128, length=32, heads=2, intermediate=96)
GEMM_SIZE = {True: 256, False: 2048}  # quick or not
OURS = "fused npu"  # what the goals are about
# Groups that take turns, by dtype.
GROUPS = {
    "float32": ((OURS, "fused cpu", "paddle cured", "paddle"), (OURS, "torch eager", "torch compile")),
    "bfloat16": ((OURS, "torch eager", "torch compile"),),
}
CONTENDERS = tuple(dict.fromkeys(name for groups in GROUPS.values() for group in groups for name in group))
STEPS_TO_VERIFY = 2  # they warm up, too
SECONDS_EACH = 40.0  # who takes longer in all its rounds gets fewer
# Relative difference of losses. In bfloat16 torch's weights are rounded to 8 bits in every step.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}


class Aim(NamedTuple):
    """``times``: so many times the tokens per second of ``against``."""

    dtype: str
    against: str
    times: float


AIMS = (
    Aim("float32", "torch eager", 1.15),
    Aim("float32", "paddle", 3.0),
    Aim("float32", "fused cpu", 1 / 1.02),
    Aim("bfloat16", "torch eager", 1.0),
    Aim("bfloat16", "torch eager", 1.3),
)


class Disagreement(Exception):
    """The contenders' losses differ: there is nothing to time."""


@dataclass(frozen=True)
class Step:
    """The case that a record is of, as ``benchmarks.report`` wants it."""

    size: LlamaSize
    dtype: str
    way: str = "step"

    @property
    def work(self):
        return SimpleNamespace(operator="llama", label=self.size.label)

    @property
    def cost(self):
        return SimpleNamespace(bytes=None, flops=self.size.flops)


def main():
    arguments = parse()
    try:
        older = report.read(arguments.compare) if arguments.compare else None
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    records = []
    try:
        for malloc in ("off", "on") if arguments.malloc == "both" else (arguments.malloc,):
            records += bench(arguments, malloc)
    except (Disagreement, contenders.Failed) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        if arguments.json and records:
            report.write(records, arguments.json)
    report.show(*report.goals(records))
    if older is not None:
        report.show(report.comparison(older, records))
    if arguments.chart:
        from benchmarks import chart  # matplotlib takes a while to import

        chart.share_of_limit(records, arguments.contenders, arguments.chart)
    return 0


def bench(arguments, malloc):
    """The records with the malloc setting on or off; the table is printed."""
    size = QUICK if arguments.quick else LlamaSize()
    start = (arguments.threads, malloc, arguments.torch_python)
    with contenders.Processes(("paddle", "fused npu", "torch eager"), *start) as processes:
        rates = measure.gemm_rates(processes, GEMM_SIZE[arguments.quick], arguments.rounds, arguments.dtypes)
        versions = {name: each.version or each.unavailable for name, each in processes.items()}
    facts = machine.facts(arguments.threads) | {"kind": "machine", "malloc": malloc, "gemm": rates}
    facts |= {"parameters": size.parameters, "versions": versions}
    report.show(report.facts(facts))
    records = [facts]
    for dtype in arguments.dtypes:
        case, times, skipped = Step(size, dtype), {}, {}
        for group in GROUPS[dtype]:
            group = [name for name in group if name in arguments.contenders]
            if group in ([], [OURS]) and times:
                continue  # timed with another group already
            found = of_group(case, group, arguments.rounds, start)
            skipped |= found["skipped"]
            for name, turns in found["turns"].items():
                times.setdefault(name, []).extend(turns)
            medians = {name: median(turns) for name, turns in found["turns"].items()}
            records += [
                report.goal_record(case, malloc, OURS, aim_of(aim, medians))
                for aim in AIMS
                if aim.dtype == dtype and {OURS, aim.against} <= medians.keys()
            ]
        floor = size.flops / rates[dtype]
        records += [time_record(case, malloc, name, floor, turns) for name, turns in times.items()]
        records += [
            report.time_record(case, malloc, name, floor, None, reason) for name, reason in skipped.items()
        ]
    report.show(table(records, size, f"malloc setting {malloc}"))
    return records


def of_group(case, names, rounds, start):
    """{"turns": {contender: what its turns answer}, "skipped": {contender: reason}}."""
    table = {name: step_contender(name, case) for name in names}
    with contenders.Processes(names, *start, table) as processes:
        skipped = {name: process.unavailable for name, process in processes.items() if process.unavailable}
        running = {name: process for name, process in processes.items() if name not in skipped}
        verify(
            case, {name: each.ask("losses", steps=STEPS_TO_VERIFY)["ok"] for name, each in running.items()}
        )
        first = {name: each.ask("time")["ok"]["seconds"] for name, each in running.items()}
        counts = {name: max(1, min(rounds, int(SECONDS_EACH / seconds))) for name, seconds in first.items()}
        turns = timing.interleaved(lambda name: running[name].ask("time")["ok"], running, counts, warm_up=0)
    return {"turns": turns, "skipped": skipped}


def step_contender(name, case):
    """The contender of this name whose process trains the Llama of the case."""
    kind, _, way = name.partition(" ")
    settings = {"dtype": case.dtype, "size": asdict(case.size)}
    if kind == "torch":
        settings |= {"compiled": way == "compile"}
    else:
        fused = kind == "fused"
        settings |= {
            "model": "fused" if fused else "stock",
            "device": way if fused else "cpu",
            "cured": way != "",
        }
    return contender(name, "torch" if kind == "torch" else "paddle", "benchmarks.step.worker", **settings)


def verify(case, losses):
    """Raises Disagreement unless the losses of all are those of the first."""
    (first, expected), *others = losses.items()
    for name, found in others:
        for step, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
            if not abs(ours - theirs) <= TOLERANCE[case.dtype] * abs(ours):  # also true of NaN
                raise Disagreement(
                    f"{case.dtype} step {step}: the loss is {ours:.6f} with {first}, {theirs:.6f} with {name}"
                )


def median(turns):
    return statistics.median(turn["seconds"] for turn in turns)


def aim_of(aim, medians):
    ours, theirs = medians[OURS], medians[aim.against]
    return Goal(
        f"time / {aim.against}'s, {aim.times:.3g}x its tokens per second:", ours / theirs, 1 / aim.times
    )


def time_record(case, malloc, name, floor, turns):
    record = report.time_record(case, malloc, name, floor, [turn["seconds"] for turn in turns])
    return record | {
        "tokens_per_second": case.size.tokens / record["median"],
        "page_faults": statistics.median(turn["faults"] for turn in turns),
    }


def table(records, size, title):
    """Tokens per second, milliseconds and page faults of a step, and the share of the limit."""
    made = Table(
        title=f"Llama {size.label}, {size.parameters / 1e6:.1f}M parameters, {title}", title_justify="left"
    )
    for heading in ("dtype", "contender", "tokens/s", "ms", "spread", "share", "page faults"):
        made.add_column(
            heading, justify="left" if heading in ("dtype", "contender") else "right", overflow="fold"
        )
    for record in records:
        if record["kind"] != "time":
            continue
        if "skipped" in record:
            made.add_row(record["dtype"], record["contender"], record["skipped"])
            continue
        milliseconds = (report.milliseconds(record[name]) for name in ("median", "spread"))
        made.add_row(
            record["dtype"],
            record["contender"],
            f"{record['tokens_per_second']:.1f}",
            *milliseconds,
            f"{record['share']:.0%}",
            f"{record['page_faults']:.0f}",
        )
    return made


def parse():
    parser = options.parser(__doc__)
    options.add_contest(parser, CONTENDERS, tuple(GROUPS), 5, "steps of each contender", "a tiny Llama")
    return options.parse_contest(parser, CONTENDERS, tuple(GROUPS))


if __name__ == "__main__":
    options.end(main)
