"""Overlap of matmul and communication: two ranks of the virtual NPU, links of several speeds.

    python -m benchmarks overlap --json overlap.jsonl
    python -m benchmarks overlap --only all_gather_matmul --dtype bfloat16 --ratios 1

Measures every operator of llm_npu.parallel.overlap, forward and backward, with trained and with frozen
weights; the two linear layers of a tensor- or sequence-parallel block, forward and backward; ring attention;
and expert parallelism. Sizes are chosen so that a matmul, or a rank's attention or experts, takes
--milliseconds on two ranks with --threads threads each. Links are chosen so that the collective, or all
transfers, take --ratios times as long; 0 means no limit. If there are no more threads than cores, the ranks
do not disturb each other.

Settings are verified against serial first and then alternate. The table has medians and spreads, exposed
time, the bound of a pipeline with the same number of chunks, the share of that bound that is reached, and the
planner's prediction. The bound includes the slowdown of a concurrent matmul by copying and adding, measured
with an unlimited link. No pipeline can hide this work if every core multiplies. "ideal" is the bound of a
device with free transfers. Goals: at ratio 1 and with matmuls of about 100 ms, the best pipeline and mc2 hide
at least 90 %; the planner's choice is at most 3 % slower than the best setting.

Exit status: 1 if a result is wrong or a rank fails, 2 for invalid arguments, 130 after Ctrl-C. A missed goal
is only printed.
"""

from fnmatch import fnmatch

from benchmarks import contest, options, report, timing
from benchmarks.overlap import experts, jobs, ring, transfers
from benchmarks.overlap.cases import BLOCKS, EXPERTS, FORWARD, RING, STEP, WAYS, Case, link_speed, rows_for

QUICK_SECONDS = 0.002


def main(words):
    return contest.run(parse(words), bench)


def bench(arguments, _, records):
    """Add the records of all cases on all links; print the tables."""
    from benchmarks.overlap import results  # imported late: it imports paddle, which takes seconds

    contest.record_machine(records, arguments.threads, "on")
    products = [(operator, way) for operator, way in arguments.work if operator not in (RING, EXPERTS)]
    multiply, rows = sizes(arguments) if products else ({}, {})
    jobs_by_link = {}
    for dtype in arguments.dtypes:
        for operator, way in products:
            case = Case(operator, way, dtype, rows[dtype], arguments.width, arguments.width)
            for ratio in arguments.ratios:
                speed = link_speed(case.sent, multiply[dtype], ratio)
                jobs_by_link.setdefault((ratio, speed), []).append(case)
    for (ratio, speed), cases in jobs_by_link.items():
        job = {"cases": [case.to_dict() for case in cases], "rounds": arguments.rounds}
        measurements = jobs.run(job, arguments.threads, speed)
        handled = handling(cases, arguments)
        for case, measurement in zip(cases, measurements, strict=True):
            records += results.records(case, ratio, speed, measurement, handled.get(case, 0.0))
    for module in (ring, experts):
        transfers.bench(module, arguments, records)
    report.show(results.table(records, "two ranks of the virtual NPU"))


def handling(cases, arguments):
    """Seconds by which copies and sums of a case's collective slow a concurrent matmul."""
    cases = [case for case in cases if case.operator not in BLOCKS]
    names = ["product", "concurrent"]
    job = {"cases": [case.to_dict() for case in cases], "rounds": arguments.rounds, "only": names}
    measurements = jobs.run(job, arguments.threads) if cases else []
    medians = [
        [timing.summary(measurement["seconds"][name]).median for name in names]
        for measurement in measurements
    ]
    return {
        case: max(0.0, concurrent - product)
        for case, (product, concurrent) in zip(cases, medians, strict=True)
    }


def sizes(arguments):
    """The time of a matmul by dtype, in seconds, and the number of rows for that time."""
    seconds = QUICK_SECONDS if arguments.quick else arguments.milliseconds / 1e3
    multiply, rows = {}, dict.fromkeys(arguments.dtypes, 512)
    for _ in range(2):  # first with a few rows, then with the final number
        cases = [
            Case("matmul_all_reduce", "forward", dtype, rows[dtype], arguments.width, arguments.width)
            for dtype in arguments.dtypes
        ]
        job = {"cases": [case.to_dict() for case in cases], "rounds": 5, "only": ["product"]}
        for case, measurement in zip(cases, jobs.run(job, arguments.threads), strict=True):
            taken = timing.summary(measurement["seconds"]["product"]).median
            rows[case.dtype] = rows_for(seconds, taken, case.rows)
            multiply[case.dtype] = taken * rows[case.dtype] / case.rows
    return multiply, rows


def parse(words):
    work = [(operator, way) for operator, ways in WAYS.items() for way in ways] + [
        (block, STEP) for block in BLOCKS
    ]
    work += [(operator, way) for operator in (RING, EXPERTS) for way in (FORWARD, STEP)]
    parser = options.parser("overlap", __doc__, torch=False)
    parser.add_argument(
        "--only", metavar="PATTERN", default="*", help='cases to run, such as "*gather* forward"'
    )
    parser.add_argument("--dtype", choices=options.DTYPES, help="default: both")
    parser.add_argument("--ratios", default="0,0.5,1,2", help="communication / matmul (default 0,0.5,1,2)")
    parser.add_argument("--milliseconds", type=float, default=100.0, help="time of a matmul (default 100)")
    parser.add_argument(
        "--width", type=int, default=2048, help="depth and columns of the weight (default 2048)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads per rank (default 1)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per setting (default 7)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, as a smoke test")
    parser.set_defaults(malloc="on")
    arguments = parser.parse_args(words)
    arguments.dtypes = (arguments.dtype,) if arguments.dtype else options.DTYPES
    arguments.work = [
        name_parts
        for name_parts in work
        if fnmatch(" ".join(name_parts), arguments.only) or name_parts[0] == arguments.only
    ]
    if not arguments.work:
        names = "; ".join(" ".join(name_parts) for name_parts in work)
        parser.error(f"--only {arguments.only} matches none of: {names}")
    try:
        arguments.ratios = [float(ratio) for ratio in arguments.ratios.split(",")]
    except ValueError:
        parser.error(f"--ratios {arguments.ratios}; accepted: numbers, such as 0,0.5,1")
    if min(arguments.ratios) < 0 or arguments.milliseconds <= 0:
        parser.error("--ratios must not be negative, and --milliseconds must be positive")
    if arguments.threads < 1 or arguments.rounds < 1:
        parser.error("--threads and --rounds must be at least 1")
    if arguments.width < 256 or arguments.width % 64:
        parser.error(f"--width {arguments.width}; accepted: a multiple of 64 from 256 on")
    options.check(parser, arguments)
    return arguments
