"""Runs the unit tests that PaddleCustomDevice publishes for its npu backend, unmodified, on the virtual NPU.

    git clone https://github.com/PaddlePaddle/PaddleCustomDevice
    git -C PaddleCustomDevice submodule update --init Paddle     # the test harness, op_test.py, is Paddle's
    git -C PaddleCustomDevice/Paddle checkout 2b49415204239cbfd4ad94003a667ee207f7b5f7
    python scripts/run_upstream_tests.py PaddleCustomDevice --report build/pages/upstream_tests.md

The documentation's build shows the report from there. The third line selects a test harness of January 2025.
The pinned harness is older than Paddle 3.0 and calls a function (core.get_attrtibute_type) that Paddle has
renamed.

Each test file runs in a separate process with a time limit, like upstream's CMake tests: with the same search
path and the environment set in backends/npu/tests/unittests/CMakeLists.txt. It runs in a copy of the test
folder (as in upstream's build), so that the checkout stays unchanged. This project's additions are in
upstream_tests/known.json: the groups of the table, environment variables for single files, and the known
reasons of failures.

Exit status: 0 if known.json explains every failure, 1 if a failure is unexplained, 2 for an unusable
checkout.
"""

import concurrent.futures
import json
import sys
from pathlib import Path

from upstream_tests.execution import Execution, check_checkout, modules_of
from upstream_tests.report import explain, progress, report

from paddle_fused import command_line
from paddle_fused.command_line import UserError

KNOWN = Path(__file__).resolve().parent / "upstream_tests" / "known.json"


def run_all(execution, modules, jobs):
    """The results of all modules, sorted by name, `jobs` in parallel; an interruption ends all processes."""
    results = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(execution.run, module) for module in modules]
        try:
            for done in concurrent.futures.as_completed(running):
                results.append(done.result())
                print(f"[{len(results)}/{len(modules)}] {progress(results[-1])}", file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            execution.stop()
            raise
    return sorted(results, key=lambda result: result.name)


def main(arguments=None):
    parser = command_line.Parser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "checkout", type=Path, help="root of a PaddleCustomDevice checkout with its submodule Paddle"
    )
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="only these files, e.g. 'test_adam*'"
    )
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel test files (default 2)")
    parser.add_argument(
        "--limit", type=float, default=1000, help="time limit per file in seconds (default 1000, as upstream)"
    )
    parser.add_argument("--report", type=Path, help="also write the table to this file")
    chosen = parser.parse_args(arguments)
    checkout = chosen.checkout.resolve()
    check_checkout(checkout)
    modules = modules_of(checkout, chosen.only)
    if not modules:
        raise UserError(
            f"No test file of {checkout} matches {' '.join(chosen.only)!r}; "
            "the names look like test_adam_op_npu"
        )
    known = json.loads(KNOWN.read_text())
    results = run_all(Execution(checkout, chosen.limit, known["environment"]), modules, chosen.jobs)
    text = report(results, known, checkout)
    print(text)
    if chosen.report:
        chosen.report.parent.mkdir(parents=True, exist_ok=True)
        chosen.report.write_text(text)
    return int(any(explain(result, known["reasons"])[1] for result in results))


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
