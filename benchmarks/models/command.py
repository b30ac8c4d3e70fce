"""PaddleNLP's models on the virtual NPU: fused, with each fused operator alone, and unfused.

    python -m benchmarks models                          every family: training and generation
    python -m benchmarks models --families llama --ways train --contenders unfused,fused --dtype float32
    python -m benchmarks models --quick                  tiny models without goals, as a smoke test
    python -m benchmarks models --json new.jsonl --compare old.jsonl

Contenders, each a separate process, with the same PaddleNLP model, weights, tokens and settings of AdamW:

    unfused      PaddleNLP's own layers, Paddle's AdamW
    fused        llm_npu.surgery.apply_fused_kernels, paddle_fused.FusedAdamW
    attention    that operator only; likewise rms_norm, rotary, swiglu, fused_adamw and, if there are experts,
                 moe

    train        forward, backward, clipping by the global norm, AdamW, on batches of S tokens
    prefill      PaddleNLP's generate until the first new token
    decode       the new tokens after it, one by one, with the key/value cache

Losses and logits must agree before anything is timed. Then the contenders of a group alternate (A B A B ...),
including the unfused model; "x unfused" is the ratio of medians within a group. Memory is the peak of tensors
on the device; launches are the kernels of a training step. The Llama has 110 million parameters. The other
families use layers of the same size, 4 layers, and grouped-query attention.

Exit status: 1 if losses or logits differ or a contender fails, 2 for invalid arguments, 130 after Ctrl-C. A
missed goal is only printed.
"""

from typing import NamedTuple

from benchmarks import contest, options, report
from benchmarks.models import QUICK, SIZES, results, turns
from benchmarks.report import Goal


class Aim(NamedTuple):
    """``times``: the goal for the speedup over the unfused model, in tokens per second."""

    family: str
    way: str
    times: float


AIMS = (Aim("llama", "train", 1.3),)


def main(words):
    arguments = parse(words)
    return contest.run(arguments, bench)


def bench(arguments, malloc, records):
    """Add the records with the malloc setting on or off; print each table when it is complete."""
    contest.record_machine(records, arguments.threads, malloc)
    start = (arguments.threads, malloc, arguments.torch_python)
    for family in arguments.families:
        size = (QUICK if arguments.quick else SIZES)[family]
        for dtype in arguments.dtypes:
            measurements = [
                turns.of_group(size, dtype, group, arguments.ways, arguments.rounds, start)
                for group in turns.groups(arguments.contenders, has_experts=bool(size.experts))
            ]
            measurements = results.records(size, dtype, malloc, measurements)
            report.show(results.table(measurements, f"{family} {size.label}, malloc setting {malloc}"))
            records += measurements if arguments.quick else [*measurements, *goals(measurements)]


def goals(records):
    """The goals for the records of one family."""
    return [
        report.goal_record(
            report.Timed(*(record[name] for name in report.KEY)),
            Goal(
                f"time / unfused, {aim.times:.3g}x its tokens per second:", 1 / record["gain"], 1 / aim.times
            ),
        )
        for aim in AIMS
        for record in records
        if (record["operator"], record["way"], record["contender"]) == (aim.family, aim.way, turns.FUSED)
    ]


def parse(words):
    parser = options.parser("models", __doc__, torch=False)
    options.add_contest(parser, turns.CONTENDERS, 5, "rounds of each contender in a group", "tiny models")
    parser.add_argument(
        "--families", metavar="NAMES", default=",".join(SIZES), help="comma-separated (default: all)"
    )
    parser.add_argument(
        "--ways", metavar="NAMES", default=",".join(turns.WAYS), help="comma-separated (default: all)"
    )
    arguments = options.parse_contest(parser, words, turns.CONTENDERS)
    options.need_paddlenlp(parser)
    for name, accepted in (("families", SIZES), ("ways", turns.WAYS)):
        chosen = [word.strip() for word in getattr(arguments, name).split(",")]
        for choice in chosen:
            if choice not in accepted:
                parser.error(f"--{name}: unknown {choice!r}; accepted: {', '.join(accepted)}")
        setattr(arguments, name, chosen)
    return arguments
