"""The table of what differs between machines and must not.

Importing this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_npu.core.machines import Machine
from llm_npu.core.untrusted.plain_text import printable

from .facts import UNSET, Facts

CLOCK = 60.0  # seconds: logs, files' dates and checkpoints' ages of one run are compared
GIB = 2**30
NAMED = 4  # machines with one value; of more, the number says enough
SHOWN = 60  # characters of a value
HASH = 12  # characters of a hash


def by_name(machines: Sequence[Machine], facts: Sequence[Facts]) -> dict[str, Facts]:
    """The facts of each machine by its name, as "machine1 10.77.0.2 (ranks 2 to 3)"."""
    return {printable(f"{each.host} {machine}"): each for machine, each in zip(machines, facts, strict=True)}


def table(machines: Mapping[str, Facts]) -> str:
    """What differs, with its values and the machines that have them; "" if nothing does.

        what  value    machines
        CANN  8.0.RC2  machine0 10.77.0.1 (ranks 0 to 1)
              8.1.RC1  machine1 10.77.0.2 (ranks 2 to 3)

    ``machines``: name -> facts. The value of the most machines comes first.
    """
    rows = [
        (what if number == 0 else "", value, _listed(names))
        for what, values in _differing(machines)
        for number, (value, names) in enumerate(values)
    ]
    if not rows:
        return ""
    rows.insert(0, ("what", "value", "machines"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"  {what:{widths[0]}}  {value:{widths[1]}}  {names}" for what, value, names in rows)


def note(machines: Mapping[str, Facts]) -> str:
    """One line about machines that may train together: what is the same, and what is free at the least."""
    said = f"{len(machines)} machines, alike in versions, code, data and variables"
    by_memory = {name: facts.memory for name, facts in machines.items() if facts.memory is not None}
    for what, free in (
        ("memory", by_memory),
        ("disk", {name: facts.disk for name, facts in machines.items()}),
    ):
        if free:
            least = min(free, key=free.__getitem__)
            said += f"; least free {what}: {free[least] / GIB:.1f} GiB on {least}"
    for what, values in _unequal({name: facts.reported for name, facts in machines.items()}):
        said += f"; {what} is " + ", ".join(f"{value} on {_listed(names)}" for value, names in values)
    return said


def _differing(machines: Mapping[str, Facts]) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    """Each fact that must be equal and is not, with (value, names of machines)."""
    yield from _unequal({name: facts.equal for name, facts in machines.items()})
    clocks = {name: facts.clock for name, facts in machines.items()}
    if max(clocks.values()) - min(clocks.values()) > CLOCK:
        first = next(iter(clocks.values()))
        yield "clock", _by_value({name: f"{clock - first:+.0f} s" for name, clock in clocks.items()})


def _unequal(facts: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    for what in dict.fromkeys(what for each in facts.values() for what in each):
        values = {name: each.get(what, UNSET) for name, each in facts.items()}
        if len(set(values.values())) > 1:
            yield printable(what), [(_short(value), names) for value, names in _by_value(values)]


def _by_value(values: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    grouped: dict[str, list[str]] = {}
    for name, value in values.items():
        grouped.setdefault(value, []).append(name)
    return sorted(grouped.items(), key=lambda item: -len(item[1]))


def _short(value: str) -> str:
    if len(value) == 64 and all(character in "0123456789abcdef" for character in value):
        return value[:HASH]
    return printable(value if len(value) <= SHOWN else f"{value[: SHOWN - 3]}...")


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
