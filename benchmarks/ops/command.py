"""The fused operators against the machine's limit, plain Paddle and PyTorch.

    python -m benchmarks ops             everything (long: compiling takes most of it)
    python -m benchmarks ops --quick     small sizes, as a smoke test
    python -m benchmarks ops --only swiglu --dtype bfloat16 --contenders "fused cpu,torch eager"
    python -m benchmarks ops --json new.jsonl --compare old.jsonl

Contenders, each a separate process: fused cpu and fused npu (this project's host kernels on the CPU place and
on the virtual NPU), composed (the same operators from plain Paddle operators), paddle (Paddle's own kernel if
it exists), torch eager and torch compile. If torch is not installed (``pip install ".[bench]"``, or
``--torch-python`` for another environment), its columns report this.

First the limits are measured: bandwidth of copies and updates, and matmuls. Then every contender's outputs
and gradients are compared with float64 (samples of rows or columns) for every case. Finally the contenders
are timed alternately (A B A B ...) on the same tensors. "limit" is the larger of bytes / bandwidth and
operations / rate of the fastest matmul, where bytes and operations are the operator's minimum. "fwd" runs
without recording a backward pass; "fwd+bwd" computes the gradients of all inputs.

Idle contenders are stopped, so that their spinning threads use no CPU time. --malloc on makes the C library
keep freed memory, for all contenders.

Exit status: 1 if a contender is wrong or fails, 2 for invalid arguments, 130 after Ctrl-C. A missed goal is
only printed.
"""

import sys

from benchmarks import contenders, contest, options, report
from benchmarks.contenders import CONTENDERS, FUSED, TORCH
from benchmarks.timing import summary

from . import cases, limits, measure

GEMM_SIZE = {True: 256, False: 2048}  # key: whether it is a quick run
GEMM_BY = ("paddle", "fused npu", "torch eager")  # contenders for the measured matmul rate
WITH_MEMORY = ("linear_cross_entropy",)


def main(words):
    return contest.run(parse(words), bench)


def bench(arguments, malloc, records):
    """Add the records of all cases with the malloc setting on or off; print the table."""
    quick, rounds, names = arguments.quick, arguments.rounds, arguments.contenders
    start = (arguments.threads, malloc, arguments.torch_python)
    chosen = list(cases.cases(cases.QUICK if quick else cases.SIZES, arguments.only, arguments.dtypes))
    bandwidth = limits.measure(arguments.threads, rounds, (8, 32) if quick else limits.SETS_MIB)
    with contenders.Processes(dict.fromkeys([*names, *GEMM_BY]), *start) as processes:
        rates = measure.gemm_contest(processes, GEMM_SIZE[quick], rounds)
        found_limits = measure.Limits(bandwidth, measure.fastest(rates))
        named = {name: processes[name] for name in names}
        measured = {"bandwidth": bandwidth, "gemm": found_limits.flops}
        contest.record_machine(records, arguments.threads, malloc, named, **measured)
        full = {}
        for case in chosen:
            print(case, file=sys.stderr)
            floor = found_limits.floor(case)
            left_out = measure.too_slow(case, rates)
            able = {name: process for name, process in named.items() if name not in left_out}
            result = measure.times(case, able, rounds)
            skipped = left_out | result["skipped"]
            records += [
                case.record(malloc, name, floor, result["seconds"].get(name), skipped.get(name))
                for name in names
            ]
            medians = {name: summary(seconds).median for name, seconds in result["seconds"].items()}
            records += goal_records(case, malloc, floor, medians, full)
    for case in chosen:
        if case.work.operator in WITH_MEMORY:
            records += memory_records(case, malloc, names, start)
    mine = [record for record in records if record.get("malloc") == malloc]
    report.show(report.table(mine, names, f"malloc setting {malloc}"))


def goal_records(case, malloc, floor, medians, full):
    """``full`` collects the times of attention without a mask, for later cases with a mask."""
    fused = {name: medians[name] for name in FUSED if name in medians}
    torch = min((medians[name] for name in TORCH if name in medians), default=None)
    mask = getattr(case.work, "mask", None)
    for name, seconds in fused.items():
        key = (name, case.work.tokens, case.dtype, case.backward) if mask else None
        if mask == "full":
            full[key] = seconds
        without = full.get(key)
        for goal in cases.goals(case, seconds, floor, torch, without):
            yield report.goal_record(case.timed(malloc, name), goal)


def memory_records(case, malloc, names, start):
    """The goal for peak memory, and a record for every contender."""
    operator = case.work.operator
    small = cases.Case(type(case.work)(*cases.QUICK[operator][0]), case.dtype, case.backward)
    with contenders.Processes(names, *start) as fresh:
        for name, peak in measure.peak_memory(case, small, fresh).items():
            goal = cases.memory_goal(case, peak)
            if name in FUSED:
                yield report.goal_record(case.timed(malloc, name), goal)
            print(f"{case}: {name} needs {peak / 2**20:.1f} MiB, {goal.value:.3f} of the logits")


def parse(words):
    parser = options.parser("ops", __doc__)
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name contains or matches PATTERN")
    options.add_contest(parser, CONTENDERS, 9, "rounds of each contender", "small sizes")
    arguments = options.parse_contest(parser, words, CONTENDERS)
    sizes = cases.QUICK if arguments.quick else cases.SIZES
    if not any(cases.cases(sizes, arguments.only, arguments.dtypes)):
        first = next(cases.cases(sizes, None, arguments.dtypes))
        parser.error(
            f"--only {arguments.only!r} matches no case; accepted: a part of a name, such as "
            f"'{first}', or a pattern with * for the whole name; operators: {', '.join(sizes)}"
        )
    return arguments
