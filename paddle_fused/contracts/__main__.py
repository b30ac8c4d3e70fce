"""python -m paddle_fused.contracts [FILE]: the rules as a page of Markdown, printed or written to FILE."""

import sys
from pathlib import Path

from .. import cann_releases, command_line
from . import CHANGES, ERRORS, LIMITS, MODULES, RULES, ByRelease

HEAD = """# What CANN's operators accept

This page is generated from `paddle_fused/ops/*/contract.py` by `python -m paddle_fused.contracts`. The
virtual NPU and the functions of `paddle_fused` reject a call with the same message and number. A rule without
a number belongs to a call that the Paddle plugin or torch_npu rejects before it reaches CANN, or for which a
card silently computes a wrong result. Limits and numbers that differ between CANN releases follow
`VIRTUAL_NPU_CANN`; the [last section](#releases) has a column for each release. The rules come from
the public documents and sources in the last column; nothing in this project has run on a card.
"""


RELEASES_HEAD = f"""
## Releases

Differences between CANN releases according to their public documents. `VIRTUAL_NPU_CANN` selects a release;
the default is {cann_releases.DEFAULT}, the release in Paddle's newest image for the 910B. The virtual NPU
follows the limits and error numbers. The other rows are for reference: the virtual NPU does not have these
functions, or applies the strict behavior at every release.

"""


def title(module) -> str:
    return module.__doc__.strip().partition("\n")[0].rstrip(".")


def table(head: tuple[str, ...], rows) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def code(names) -> str:
    return ", ".join(f"`{name}`" for name in names)


def rows_of(module):
    for rule in module.RULES:
        error = "" if rule.error_number is None else str(rule.error_number)
        yield f"`{rule.key}`", code(rule.operators), rule.accepts, error, rule.advice, rule.source


def numbers_of(rule) -> tuple[int | None, ...]:
    number = rule.error_number
    return (number.value, number.later) if isinstance(number, ByRelease) else (number,)


def rows_by_release():
    """One row per difference between releases: its name, the value in each release, the source."""
    changed = [(f"`{name}`", value) for name, value in LIMITS.items() if isinstance(value, ByRelease)]
    for module in MODULES:
        name = f"{title(module).partition(':')[0]}: error number for shapes"
        errors = {rule.error_number for rule in module.RULES if isinstance(rule.error_number, ByRelease)}
        changed += [(name, error) for error in errors]
    for name, value in changed:
        card = f" on the {value.card}" if value.card else ""
        cells = [str(value.at(release, value.card)) for release in cann_releases.RELEASES]
        yield name + card, *cells, f"[source]({value.source})"
    for change in CHANGES:
        cells = map(change.at, cann_releases.RELEASES)
        yield change.subject, *cells, f"[source]({change.source})"


def page() -> str:
    counted = {number: sum(number in numbers_of(rule) for rule in RULES.values()) for number in ERRORS}
    parts = [HEAD, "\n## Numbers\n\n"]
    numbers = [(str(n), f"`{name}`", str(counted[n])) for n, name in sorted(ERRORS.items()) if counted[n]]
    parts.append(table(("Number", "Name", "Rules"), numbers))
    columns = ("Rule", "Operators", "Accepted", "Error", "Advice", "Source")
    for module in MODULES:
        legend = module.__doc__.strip().partition("\n")[2]
        parts.append(f"\n## {title(module)}\n\n")
        parts.append(f"{' '.join(legend.split())}\n\n" if legend.strip() else "")
        parts.append(table(columns, rows_of(module)))
    parts.append("\n## Limits\n\n")
    parts.append(table(("Limit", "Value"), [(f"`{name}`", str(value)) for name, value in LIMITS.items()]))
    parts.append(RELEASES_HEAD)
    parts.append(table(("", *cann_releases.RELEASES, "Source"), rows_by_release()))
    return "".join(parts)


def main(argv: list[str]) -> None:
    if argv:
        Path(argv[0]).write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
