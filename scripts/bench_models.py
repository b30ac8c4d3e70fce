"""PaddleNLP's models on the virtual NPU: fused, with each fused operator alone, and unfused.

    python scripts/bench_models.py --chart models.png       every family: training and generation
    python scripts/bench_models.py --families llama --ways train --contenders unfused,fused --dtype float32
    python scripts/bench_models.py --quick                  tiny models without goals, to see that it works
    python scripts/bench_models.py --json new.jsonl --compare old.jsonl

Contenders, each a process of its own, with the same model of PaddleNLP, weights, tokens and AdamW of Paddle:

    unfused      as PaddleNLP has it
    fused        llm_npu.surgery.apply_fused_kernels
    attention    that operator only; so rms_norm, rotary, swiglu and, where there are experts, moe

    train        forward, backward, clipping by the global norm, AdamW, on batches of S tokens
    prefill      PaddleNLP's generate until the first new token
    decode       the new tokens after it, one by one, with the key/value cache

Losses and logits must agree before anything is timed. Then a group takes turns (A B A B ...), the unfused
model in each; "x unfused" is the ratio of medians within a group. Memory is the most that tensors held on the
device.
The Llama has 110 million parameters; the other families have its layers' sizes, 4 layers, and grouped heads.

Exit status: 1 if losses or logits differ or a contender fails, 2 for wrong arguments, 130 after Ctrl-C; a
missed goal is printed.
"""

import sys
from types import SimpleNamespace
from typing import NamedTuple

from benchmarks import contenders, machine, options, report
from benchmarks.cases import Goal
from benchmarks.models import QUICK, SIZES, results, turns

DTYPES = ("float32", "bfloat16")


class Aim(NamedTuple):
    """``times``: so many times the unfused model's tokens per second."""

    family: str
    way: str
    times: float


AIMS = (Aim("llama", "train", 1.3),)


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
            bench(arguments, malloc, records)
    except (turns.Disagreement, contenders.Failed) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        if arguments.json and records:
            report.write(records, arguments.json)
    report.show(*report.goals(records))
    if older is not None:
        report.show(report.comparison(older, records))
    if arguments.chart:
        results.chart(records, arguments.chart)
    return 0


def bench(arguments, malloc, records):
    """Adds the records with the malloc setting on or off; the tables are printed as they come."""
    facts = machine.facts(arguments.threads) | {"kind": "machine", "malloc": malloc}
    report.show(report.facts(facts))
    records.append(facts)
    start = (arguments.threads, malloc, arguments.torch_python)
    for family in arguments.families:
        size = (QUICK if arguments.quick else SIZES)[family]
        for dtype in arguments.dtypes:
            found = [
                turns.of_group(size, dtype, group, arguments.ways, arguments.rounds, start)
                for group in turns.groups(arguments.contenders, has_experts=bool(size.experts))
            ]
            found = results.records(size, dtype, malloc, found)
            report.show(results.table(found, f"{family} {size.label}, malloc setting {malloc}"))
            records += found if arguments.quick else [*found, *goals(found, size, dtype, malloc)]


def goals(found, size, dtype, malloc):
    gains = {record["way"]: record["gain"] for record in found if record["contender"] == turns.FUSED}
    case = SimpleNamespace(
        work=SimpleNamespace(operator=size.family, label=size.label), dtype=dtype, way="train"
    )
    return [
        report.goal_record(
            case,
            malloc,
            turns.FUSED,
            Goal(
                f"time / unfused, {aim.times:.3g}x its tokens per second:",
                1 / gains[aim.way],
                1 / aim.times,
            ),
        )
        for aim in AIMS
        if aim.family == size.family and aim.way in gains
    ]


def parse():
    parser = options.parser(__doc__, torch=False)
    options.add_contest(
        parser,
        turns.CONTENDERS,
        DTYPES,
        5,
        "turns of each contender in a group",
        "tiny models",
        "draw where the gain comes from",
    )
    parser.add_argument(
        "--families", metavar="NAMES", default=",".join(SIZES), help="comma-separated (default: all)"
    )
    parser.add_argument(
        "--ways", metavar="NAMES", default=",".join(turns.WAYS), help="comma-separated (default: all)"
    )
    arguments = options.parse_contest(parser, turns.CONTENDERS, DTYPES)
    for name, accepted in (("families", SIZES), ("ways", turns.WAYS)):
        chosen = [each.strip() for each in getattr(arguments, name).split(",")]
        for each in chosen:
            if each not in accepted:
                parser.error(f"--{name}: {each!r} is none; accepted: {', '.join(accepted)}")
        setattr(arguments, name, chosen)
    return arguments


if __name__ == "__main__":
    options.end(main)
