"""A training step of a Llama: tokens per second, Paddle and torch, float32 and bfloat16.

    python -m benchmarks step                       110M parameters, float32 and bfloat16: minutes
    python -m benchmarks step --quick               a tiny one, as a smoke test
    python -m benchmarks step --dtype float32 --json new.jsonl --compare old.jsonl

A step is forward, backward, clipping by the global norm, AdamW. Contenders, each a separate process:

    fused npu       PaddleNLP's Llama by the fused operators and FusedAdamW on the virtual NPU
    fused cpu       the same on the CPU place (float32 only: Paddle's CPU kernels have no bfloat16)
    paddle          PaddleNLP's Llama and Paddle's AdamW on the CPU place, as they come (float32 only)
    paddle cured    the same with MKL on its AVX2 or AVX-512 path, as the virtual NPU has it; on processors
                    that are not Intel's MKL takes another, three to eight times slower
    torch eager     the same Llama in plain torch with its scaled_dot_product_attention and fused AdamW
    torch compile   through torch.compile

All contenders start from the same weights and train on the same tokens; the losses of the first steps must
agree. Then the contenders of a group alternate (A B A B ...) while the others are stopped. Memory does not
suffice for all contenders at once. "share" is the share of the machine's limit: operations of a step / rate
of the fastest matmul, which is measured first. Goals compare medians of one group. --malloc on makes the C
library keep freed memory, for all contenders.

In bfloat16, Paddle keeps master weights and moments in float32, torch keeps everything in bfloat16. On a
processor without bfloat16 instructions, torch would take hours and is skipped with that reason.

Exit status: 1 if losses differ or a contender fails, 2 for invalid arguments, 130 after Ctrl-C. A missed goal
is only printed.
"""

import statistics
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

from benchmarks import contenders, contest, options, report, timing
from benchmarks.contenders import contender
from benchmarks.ops import measure
from benchmarks.report import Goal
from benchmarks.step import LlamaSize

QUICK = LlamaSize(hidden=64, layers=2, vocabulary=128, length=32, heads=2, intermediate=96)
GEMM_SIZE = {True: 256, False: 2048}  # key: whether it is a quick run
OURS = "fused npu"  # subject of the goals
# Contenders that alternate, by dtype.
GROUPS = {
    "float32": ((OURS, "fused cpu", "paddle cured", "paddle"), (OURS, "torch eager", "torch compile")),
    "bfloat16": ((OURS, "torch eager", "torch compile"),),
}
CONTENDERS = tuple(dict.fromkeys(name for groups in GROUPS.values() for group in groups for name in group))
WORKERS = {
    "paddle": ("paddle", "benchmarks.step.paddle_llama.PaddleLlama"),
    "torch": ("torch", "benchmarks.step.torch_llama.TorchLlama"),
}
STEPS_TO_VERIFY = 2  # training steps, which also warm up
SECONDS_EACH = 40.0  # time limit of a contender over all rounds; slower contenders get fewer rounds


class Aim(NamedTuple):
    """``times``: the goal for the speedup over ``against``, in tokens per second."""

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


def main(words):
    return contest.run(parse(words), bench)


def bench(arguments, malloc, records):
    """Add the records with the malloc setting on or off; print the table."""
    size = QUICK if arguments.quick else LlamaSize()
    start = (arguments.threads, malloc, arguments.torch_python)
    with contenders.Processes(("paddle", "fused npu", "torch eager"), *start) as processes:
        rates = measure.gemm_rates(processes, GEMM_SIZE[arguments.quick], arguments.rounds, arguments.dtypes)
        measured = {"gemm": rates, "parameters": size.parameters}
        contest.record_machine(records, arguments.threads, malloc, processes, **measured)
    for dtype in arguments.dtypes:
        times, skipped = {}, {}
        timed = partial(report.Timed, "llama", size.label, dtype, "step", malloc)
        for group in GROUPS[dtype]:
            group = [name for name in group if name in arguments.contenders]
            if group in ([], [OURS]) and times:
                continue  # already timed with another group
            group_results = of_group(size, dtype, group, arguments.rounds, start)
            skipped |= group_results["skipped"]
            for name, turns in group_results["turns"].items():
                times.setdefault(name, []).extend(turns)
            medians = {name: median(turns) for name, turns in group_results["turns"].items()}
            records += [
                report.goal_record(timed(OURS), aim_of(aim, medians))
                for aim in AIMS
                if aim.dtype == dtype and {OURS, aim.against} <= medians.keys()
            ]
        limit = {"limit": size.flops / rates[dtype], "flops": size.flops}
        for name, turns in times.items():
            record = report.time_record(timed(name), [turn["seconds"] for turn in turns], **limit)
            record["tokens_per_second"] = size.tokens / record["median"]
            record["page_faults"] = statistics.median(turn["faults"] for turn in turns)
            records.append(record)
        records += [
            report.time_record(timed(name), None, reason, **limit) for name, reason in skipped.items()
        ]
    mine = [record for record in records if record.get("malloc") == malloc]
    report.show(table(mine, size, f"malloc setting {malloc}"))


def of_group(size, dtype, names, rounds, start):
    """{"turns": {contender: results of its rounds}, "skipped": {contender: reason}}."""
    table = {name: step_contender(name, size, dtype) for name in names}
    with contenders.Processes(names, *start, table) as processes:
        skipped = {name: process.unavailable for name, process in processes.items() if process.unavailable}
        running = {name: process for name, process in processes.items() if name not in skipped}
        losses = {
            name: process.ask("losses", steps=STEPS_TO_VERIFY)["ok"] for name, process in running.items()
        }
        contest.agree(dtype, losses)
        first = {name: process.ask("time")["ok"]["seconds"] for name, process in running.items()}
        counts = {
            name: timing.rounds_within(seconds, rounds, SECONDS_EACH) for name, seconds in first.items()
        }
        turns = timing.interleaved(lambda name: running[name].ask("time")["ok"], running, counts, warm_up=0)
    return {"turns": turns, "skipped": skipped}


def step_contender(name, size, dtype):
    """The contender of this name, whose process trains the Llama."""
    kind, _, way = name.partition(" ")
    settings = {"dtype": dtype, "size": asdict(size)}
    if kind == "torch":
        settings |= {"compiled": way == "compile"}
    else:
        fused = kind == "fused"
        settings |= {
            "model": "fused" if fused else "upstream",
            "device": way if fused else "cpu",
            "cured": way != "",
        }
    worker = WORKERS["torch" if kind == "torch" else "paddle"]
    return contender(name, *worker, **settings)


def median(turns):
    return statistics.median(turn["seconds"] for turn in turns)


def aim_of(aim, medians):
    own, other = medians[OURS], medians[aim.against]
    return Goal(
        f"time / {aim.against}'s, {aim.times:.3g}x its tokens per second:", own / other, 1 / aim.times
    )


def table(records, size, title):
    """Tokens per second, milliseconds and page faults of a step, and the share of the limit."""
    title = f"Llama {size.label}, {size.parameters / 1e6:.1f}M parameters, {title}"
    right = ("tokens/s", "ms", "spread", "share", "page faults")
    rich_table = report.blank(title, ("dtype", "contender"), right)
    for record in records:
        if record["kind"] != "time":
            continue
        if "skipped" in record:
            rich_table.add_row(record["dtype"], record["contender"], record["skipped"])
            continue
        milliseconds = (report.milliseconds(record[name]) for name in ("median", "spread"))
        rich_table.add_row(
            record["dtype"],
            record["contender"],
            f"{record['tokens_per_second']:.1f}",
            *milliseconds,
            f"{record['share']:.0%}",
            f"{record['page_faults']:.0f}",
        )
    return rich_table


def parse(words):
    parser = options.parser("step", __doc__)
    options.add_contest(parser, CONTENDERS, 5, "steps of each contender", "a tiny Llama")
    arguments = options.parse_contest(parser, words, CONTENDERS)
    if any(not name.startswith("torch") for name in arguments.contenders):
        options.need_paddlenlp(parser)
    return arguments
