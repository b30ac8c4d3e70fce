"""llm-npu profile report DIR...: explain a profile."""

from __future__ import annotations

import argparse
import sys

from llm_npu.core import paths, program
from llm_npu.core.errors import caused_by_the_user
from paddle_fused import command_line


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    parser = command_line.Parser(prog="llm-npu profile", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("report", help="show where the time is spent, and recommendations")
    command.add_argument(
        "directories",
        nargs="+",
        type=paths.path_argument,
        metavar="DIR",
        help="profiler output (PROF_*, Paddle's traces, rank_* folders); one per machine of the run",
    )
    command.add_argument(
        "--compare",
        nargs="+",
        type=paths.path_argument,
        metavar="DIR2",
        help="an earlier profile to compare with",
    )
    command.add_argument(
        "--html", type=paths.path_argument, metavar="FILE", help="also write a page with plots"
    )
    command.add_argument("--top", type=int, default=15, help="operators in the tables (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.top < 1:
        parser.error(f"--top is {options.top}; accepted: 1 or more")
    with caused_by_the_user():  # damaged files
        _report(options)
    return 0


def _report(options: argparse.Namespace) -> None:
    from .report import compare, summary
    from .report.pages import page, plain

    report = summary.build(*options.directories)
    comparison = compare.compare(summary.build(*options.compare), report) if options.compare else None
    if options.html:
        options.html.write_text(page.write(report, comparison, options.top), encoding="utf-8")
    print(plain.write(report, comparison, options.top), end="")
    if options.html:
        print(f"\nThe page is {options.html}")


if __name__ == "__main__":
    sys.exit(program.run(main, sys.argv[1:]))
