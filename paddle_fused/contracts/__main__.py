"""python -m paddle_fused.contracts [FILE]: the rules as a page of Markdown, printed or written to FILE."""

import sys
from pathlib import Path

from .. import command_line
from . import ERRORS, LIMITS, MODULES, RULES

HEAD = """# What CANN's operators accept

This page is generated from `paddle_fused/ops/*/contract.py` by `python -m paddle_fused.contracts`. The
virtual NPU and the functions of `paddle_fused` refuse a call with the same message and number. A rule has no
number if the Paddle plugin or torch_npu refuses the call before it reaches CANN, or if a card silently
computes a wrong result. Limits that depend on the CANN version follow `VIRTUAL_NPU_CANN`. The rules come from
the public documents and sources in the last column; nothing has run on a card here.
"""


def table(head: tuple[str, ...], rows) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def code(names) -> str:
    return ", ".join(f"`{name}`" for name in names)


def rows_of(module):
    for rule in module.RULES:
        error = "" if rule.error is None else str(rule.error)
        yield f"`{rule.key}`", code(rule.operators), rule.accepts, error, rule.advice, rule.source


def page() -> str:
    counted = {number: sum(rule.error == number for rule in RULES.values()) for number in ERRORS}
    parts = [HEAD, "\n## Numbers\n\n"]
    numbers = [(str(n), f"`{name}`", str(counted[n])) for n, name in sorted(ERRORS.items()) if counted[n]]
    parts.append(table(("Number", "Name", "Rules"), numbers))
    columns = ("Rule", "Operators", "Accepted", "Error", "Advice", "Source")
    for module in MODULES:
        title, _, legend = module.__doc__.strip().partition("\n")
        parts.append(f"\n## {title.rstrip('.')}\n\n")
        parts.append(f"{' '.join(legend.split())}\n\n" if legend.strip() else "")
        parts.append(table(columns, rows_of(module)))
    parts.append("\n## Limits\n\n")
    parts.append(table(("Limit", "Value"), [(f"`{name}`", str(value)) for name, value in LIMITS.items()]))
    return "".join(parts)


def main(argv: list[str]) -> None:
    if argv:
        Path(argv[0]).write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
