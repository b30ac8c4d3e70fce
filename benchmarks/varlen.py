"""Sequences of different lengths: a decoder with several strategies of padding and packing.

    python -m benchmarks varlen
    python -m benchmarks varlen --width 256 --depth 4 --json varlen.jsonl

A batch of sequences with lengths uniform below --longest is evaluated (bidirectional attention) and trained
(causal attention, one step of SGD), in float32. Strategies: padding to the maximum length; dynamic padding to
the longest sequence of the batch; and packing the sequences into one row. For packing, attention receives the
lengths (varlen) or a block-diagonal mask, or is called per sequence (loop). Padded sequences run in PyTorch
(eager and compiled) and in plain Paddle. Packed sequences run with paddle_fused on the CPU place and on the
virtual NPU, and in PyTorch as a loop, its only way to train on a CPU.

All losses, before and after the first training step, must agree with each other, and the first with a float64
reference. Then all contenders alternate. The floor is the arithmetic without padding at the rate of the
fastest matmul. Goals: the packed strategies of paddle_fused are at least 2.6 times (evaluation) and 2.1 times
(training) as fast as PyTorch's padding.

Exit status: 1 if the losses differ or a contender fails, 2 for invalid arguments, 130 after Ctrl-C. A missed
goal is only printed.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks import contenders, contest, machine, options, report, timing
from benchmarks.contenders import FUSED, TORCH
from benchmarks.contest import Wrong
from benchmarks.ops import measure, verify
from benchmarks.ops.cases import Case
from benchmarks.report import Goal
from benchmarks.work import Decoder, filled

PADDED_BY = (*TORCH, "paddle")
TABLE = {  # strategy: contenders that support it
    "padding": PADDED_BY,
    "dynamic padding": PADDED_BY,
    "packed loop": ("torch eager",),
    "packed varlen": FUSED,
    "packed mask": FUSED,
}
BASELINE = ("padding", "torch eager")
GOALS = {False: 2.6, True: 2.1}  # key: whether it is training
AFTER_A_STEP = 1e-4  # relative difference of the losses after one step, computed in float32 throughout
GEMM_SIZE = 1024


def main(words):
    return contest.run(parse(words), bench)


def bench(arguments, malloc, records):
    names = dict.fromkeys(name for of in TABLE.values() for name in of)
    with contenders.Processes(names, arguments.threads, malloc, arguments.torch_python) as processes:
        measure_all(arguments, processes, records)


def measure_all(arguments, processes, records):
    """Add the records of evaluation and training; print their tables."""
    flops = measure.gemm_rates(processes, GEMM_SIZE, arguments.rounds, ("float32",))
    contest.record_machine(records, arguments.threads, arguments.malloc, processes, gemm=flops)
    for is_training in (False, True):
        built = {strategy: case(strategy, is_training, arguments) for strategy in TABLE}
        who = [(strategy, name) for strategy, of in TABLE.items() for name in of]
        try:
            skipped = prepare(built, who, processes)
            seconds = take_turns([key for key in who if key not in skipped], processes, arguments.rounds)
        finally:
            for process in processes.values():
                process.ask("release")
        floor = built["padding"].cost.flops / flops["float32"]
        records += [
            built[key[0]].record(arguments.malloc, key[1], floor, seconds.get(key), skipped.get(key))
            for key in who
        ]
        records += goals(built, seconds, arguments.malloc)
        show(is_training, who, seconds, skipped, floor)


def case(strategy, is_training, arguments):
    sizes = (arguments.batch, arguments.longest, arguments.width, arguments.depth, arguments.vocabulary)
    return Case(Decoder(strategy, is_training, *sizes), "float32", False)


def prepare(cases, who, processes):
    """Prepare and verify; return {(strategy, contender): reason} of unsupported combinations."""
    work = cases["padding"].work
    truth = float(work.golden(filled(work, "float32"), {}, False)["loss"])
    skipped, after = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.npz"
        for key in who:
            strategy, name = key
            process, of = processes[name], cases[strategy]
            answer = process.ask("prepare", slot=strategy, **of.request)
            if "unavailable" in answer:
                skipped[key] = answer["unavailable"]
                continue
            losses = []
            for _ in range(1 + of.work.is_training):
                process.ask("verify", slot=strategy, file=str(file))
                losses.append(float(verify.samples(file)["loss"]))
            agree(f"{of} {name}", losses[0], truth, verify.TOLERANCE["float32"])
            after[key] = losses[-1]
    for key, loss in after.items():
        agree(
            f"{cases[key[0]]} {key[1]}, after a step",
            loss,
            float(np.median(list(after.values()))),
            AFTER_A_STEP,
        )
    return skipped


def agree(what, loss, expected, tolerance):
    if not abs(loss - expected) <= tolerance * abs(expected):  # also true for NaN
        raise Wrong(f"{what}: the loss is {loss:.7f}, expected {expected:.7f}.")


def take_turns(who, processes, rounds):
    def seconds(key):
        return processes[key[1]].ask("time", calls=1, slot=key[0])["ok"]

    return timing.interleaved(seconds, who, rounds, warm_up=0)  # the verification was the warm-up


def goals(cases, seconds, malloc):
    if BASELINE not in seconds:
        return
    baseline = timing.summary(seconds[BASELINE]).median
    for key, of in seconds.items():
        if key[1] in FUSED:
            work = cases[key[0]].work
            ratio = timing.summary(of).median / baseline
            goal = Goal("time / padding in torch eager", ratio, 1 / GOALS[work.is_training])
            yield report.goal_record(cases[key[0]].timed(malloc, key[1]), goal)


def show(is_training, who, seconds, skipped, floor):
    medians = {key: timing.summary(of) for key, of in seconds.items()}
    baseline = medians.get(BASELINE)
    title = f"{'training' if is_training else 'evaluation'}: arithmetic alone {report.milliseconds(floor)} ms"
    right = ("ms ± spread", "times as fast as padding in torch eager")
    table = report.blank(title, ("strategy", "contender"), right)
    for key in who:
        if key in medians:
            time = " ± ".join(map(report.milliseconds, medians[key]))
            ratio = f"{baseline.median / medians[key].median:.2f}" if baseline else ""
            table.add_row(*key, time, ratio)
        else:
            table.add_row(*key, skipped[key], "")
    report.show(table)


def parse(words):
    parser = options.parser("varlen", __doc__)
    for name, default, what in (
        ("batch", 32, "sequences"),
        ("longest", 1024, "upper limit of the uniform lengths"),
        ("width", 128, "a multiple of 64, the head size"),
        ("depth", 2, "layers"),
        ("vocabulary", 1024, "tokens"),
        ("rounds", 3, "rounds per contender"),
        ("threads", machine.cores(), "all cores"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default {default})")
    parser.add_argument("--malloc", choices=("on", "off"), default="on", help="as for `ops`; default on")
    arguments = parser.parse_args(words)
    smallest = {"batch": 1, "longest": 2, "width": 64, "depth": 1, "vocabulary": 2, "rounds": 1, "threads": 1}
    for name, least in smallest.items():
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}")
    if arguments.width % 64:
        parser.error("--width must be a multiple of 64")
    options.check(parser, arguments)
    return arguments
