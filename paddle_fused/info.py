"""Lists which backend runs which operator on this machine, with reasons: ``python -m paddle_fused.info``.

Every case of every operator is dispatched to every backend, in every dtype, on the CPU place and on the npu.
Nothing is computed. A cell shows the modes that would run, the number of refused calls, and the reasons.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field

from . import command_line, registry
from .parity import environment, use_an_npu

PLACES = ("cpu", "npu")


@dataclass
class Cell:
    """The accepted calls of one operator, backend and place, by mode, and the refused calls, by reason."""

    modes: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)

    def word(self) -> str:
        """``yes``, ``some`` or ``no``: whether the calls would run."""
        assert self.modes or self.reasons, "a cell without an answer"
        if not self.modes:
            return "no"
        return "some" if self.reasons else "yes"

    def counts(self) -> str:
        """The number of calls that would run and the total."""
        accepted, refused = sum(self.modes.values()), sum(self.reasons.values())
        return f"{accepted} of {accepted + refused}"


def table() -> dict[str, dict[tuple[str, str], Cell]]:
    """The cells of each operator, by backend and place."""
    from .dispatch import BACKENDS

    rows: dict[str, dict[tuple[str, str], Cell]] = {}
    for case in registry.all_cases():
        row = rows.setdefault(case.operator, {(b, p): Cell() for b in BACKENDS for p in PLACES})
        for dtype in case.dtypes:
            for place in PLACES:
                for backend, (reason, mode, _) in _support(case, dtype, place).items():
                    cell = row[backend, place]
                    if reason is None:
                        cell.modes[mode or "composition"] += 1
                    else:
                        cell.reasons[reason] += 1
    return rows


def _support(case, dtype: str, place: str) -> dict:
    import numpy as np
    import paddle

    from .dispatch import explain_dispatch

    paddle.device.set_device("npu:0" if place == "npu" else "cpu")
    tensors = {}
    for name, array in case.arrays(np.random.default_rng(0)).items():
        if array is None:
            continue
        tensor = paddle.to_tensor(array)
        if np.issubdtype(array.dtype, np.floating):
            tensor = tensor.astype("float32").astype("float32" if name in case.keep_float32 else dtype)
        tensors[name] = tensor
    return explain_dispatch(lambda: case.call(tensors)).support


def plugin_operators() -> dict[str, dict[str, list[str]] | None]:
    """The inputs and attributes of the plugin operators that this package calls by name.

    The value is None for an operator that the installed plugin does not have.
    """
    from . import ascend
    from .contracts import OPERATORS_BY_NAME

    signatures = {name: ascend.signature(name) for name in OPERATORS_BY_NAME}
    return {
        name: signature and {"inputs": list(signature.inputs), "attributes": list(signature.attributes)}
        for name, signature in signatures.items()
    }


def markdown(rows) -> str:
    """The table as Markdown, with one column per backend and place."""
    from .dispatch import BACKENDS

    columns = [(b, p) for b in BACKENDS for p in PLACES]
    lines = ["| operator | " + " | ".join(f"{b}, {p}" for b, p in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for operator, row in rows.items():
        lines.append(f"| `{operator}` | " + " | ".join(row[column].word() for column in columns) + " |")
    return "\n".join(lines) + "\n"


def explanation(rows) -> str:
    """The modes and reasons of every cell, with the number of calls."""
    lines = []
    for operator, row in rows.items():
        lines.append(operator)
        for (backend, place), cell in row.items():
            lines.append(f"  {backend:8} {place}  {cell.counts()}")
            lines += [f"      runs {mode} ({count})" for mode, count in cell.modes.most_common()]
            lines += [f"      refused: {reason} ({count})" for reason, count in cell.reasons.most_common()]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    parser = command_line.Parser(prog="python -m paddle_fused.info", description=__doc__.split("\n")[0])
    parser.add_argument("--markdown", action="store_true", help="print the table only, in Markdown")
    options = parser.parse_args(argv)
    use_an_npu()
    rows = table()
    if options.markdown:
        print(markdown(rows), end="")
        return 0
    for name, value in environment().items():
        print(f"{name}: {value}")
    print("calls that would run, of the cases in every dtype\n")
    print(explanation(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
