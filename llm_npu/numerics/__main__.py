"""Compare the dumps of two runs (--dump_tensors).

    llm-npu numerics compare out/tensors out2/tensors [--noise_floor out3/tensors] [--json FILE]

Exit codes: 0 no difference exceeds rounding; 1 a difference; 2 bad input, with one sentence on stderr.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from llm_npu.core import paths, program
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted.plain_text import printable
from paddle_fused import command_line, strict_json


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    from .comparison import compare  # imported late: --help needs no numpy
    from .dumped import dumps

    if not arguments.roundings > 0:
        raise UserError(f"--roundings is {arguments.roundings}; accepted: above 0")
    first, second = dumps(arguments.first), dumps(arguments.second)
    noise_floors = [dumps(folder) for folder in arguments.noise_floor]
    common = [place for place in second if place in first]
    if not common:
        raise UserError(
            f"{arguments.first} has {', '.join(first)}, but {arguments.second} has {', '.join(second)}: "
            "they have no step and rank in common"
        )
    comparisons = {}
    for place in common:
        floors = [recordings[place] for recordings in noise_floors if place in recordings]
        comparisons[place] = compare(first[place], second[place], floors, arguments.roundings)
    for place, comparison in comparisons.items():
        for line in (f"{place}:", *(f"  {line}" for line in comparison.lines(arguments.shown))):
            print(printable(line))
    for place in sorted({*first, *second} - {*common}):
        print(printable(f"{place}: in only one of the folders"))
    if arguments.json:
        rows = {
            place: [asdict(row) | {"parts": row.exceeds} for row in comparison.differences]
            for place, comparison in comparisons.items()
        }
        Path(arguments.json).write_text(strict_json.dumps(rows, indent=1))
    return int(any(comparison.beyond_rounding for comparison in comparisons.values()))


def _parser() -> command_line.Parser:
    parser = command_line.Parser(prog="llm-npu numerics", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    compare = commands.add_parser("compare", help="compare two folders of dumps")
    compare.add_argument("first", metavar="DIR")
    compare.add_argument("second", metavar="DIR2", help="the reference, which determines the order")
    compare.add_argument(
        "--noise_floor",
        action="append",
        default=[],
        metavar="DIR3",
        help="a run that differs from DIR2 only by rounding; can be repeated",
    )
    compare.add_argument(
        "--roundings",
        type=float,
        default=32,
        help="rounding units allowed without a noise floor (default: 32)",
    )
    compare.add_argument("--shown", type=int, default=8, help="number of differences to show (default: 8)")
    compare.add_argument("--json", type=paths.expanded, metavar="FILE", help="write all differences to FILE")
    return parser


if __name__ == "__main__":
    sys.exit(program.run(main, sys.argv[1:]))
