"""The registry of operators. Each registers itself once, in the ``__init__.py`` of its folder in ``ops``.

The public names of ``paddle_fused``, ``contracts``, the programs ``info``, ``parity`` and ``fuzz``, the
surgery's switches, the tests and the documentation follow the registrations. In a folder stand:

    __init__.py   ``OPERATORS``, the registrations; no import of Paddle, as the build reads them, too
    op.py         the public functions, the definition, the backends
    contract.py   CANN's rules as data; none where CANN has no such operator
    cases.py      ``CASES``; ``DRAW``: for each operator a function that draws a random legal case;
                  ``BROKEN``: calls that break the rules, each (key of the rule, function that calls)
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Cost(NamedTuple):
    """The least that a call must do: bytes read and written once, and floating-point operations.

    ``in_place``: most written bytes were read before, so that the bandwidth of updates is the limit.
    """

    bytes: int
    flops: int = 0
    in_place: bool = False


@dataclass(frozen=True)
class Operator:
    """``name``: used in cases, records, reports and documentation. ``package``: its folder's import path.

    ``cost(item_size, backward, **sizes)``: the Cost of a forward call, with ``backward`` of forward and
    backward together, for elements of ``item_size`` bytes. ``function_name``: of the public function, where
    it is not ``name``. ``switch``: the option that puts it into models. ``rules``: the modules of the package
    with CANN's rules, which its operators share.
    """

    name: str
    package: str
    cost: Callable[..., Cost]
    function_name: str = ""
    switch: str | None = None
    rules: tuple[str, ...] = ("contract",)

    @property
    def public(self) -> str:
        """The name in ``paddle_fused``."""
        return self.function_name or self.name

    def function(self):
        """The public function (of an optimizer the class)."""
        return getattr(importlib.import_module(f"{self.package}.op"), self.public)

    def cases(self) -> list:
        """Its test cases, each an ``ops.case.OpCase``."""
        return [case for case in self._cases.CASES if case.operator == self.name]

    def draw(self, random):
        """A random legal case from a numpy Generator, small enough to run thousands."""
        return self._cases.DRAW[self.name](random)

    @property
    def _cases(self):
        return importlib.import_module(f"{self.package}.cases")


@functools.cache
def operators() -> dict[str, Operator]:
    """All operators by name, in the order of their folders."""
    ops = importlib.import_module(f"{__package__}.ops")
    packages = [found.name for found in pkgutil.iter_modules(ops.__path__, f"{ops.__name__}.") if found.ispkg]
    rows = [row for package in sorted(packages) for row in importlib.import_module(package).OPERATORS]
    assert len({row.name for row in rows}) == len(rows), "a name is registered twice"
    return {row.name: row for row in rows}


def find(name: str) -> Operator:
    """The operator ``name``; ValueError if there is none."""
    if name not in operators():
        raise ValueError(f"{name!r} is not an operator; there are {', '.join(sorted(operators()))}.")
    return operators()[name]


def all_cases() -> list:
    """Every case of every operator."""
    return [case for operator in operators().values() for case in operator.cases()]


def broken_rules() -> list:
    """Calls that break CANN's rules, from the operators' cases: (key of the rule, function that calls)."""
    modules = dict.fromkeys(f"{operator.package}.cases" for operator in operators().values())
    return [row for module in modules for row in getattr(importlib.import_module(module), "BROKEN", ())]


def rule_modules() -> list[str]:
    """The modules that hold the operators' rules, without duplicates."""
    modules = (f"{operator.package}.{rules}" for operator in operators().values() for rules in operator.rules)
    return list(dict.fromkeys(modules))


def load_operators() -> None:
    """Loads the host operators (``pf_...``) and those of the npu plugin, if there is one, into Paddle.

    To be called before ``paddle.jit.load`` or ``paddle.inference.create_predictor`` reads a program with them
    in it. RuntimeError says why the host operators could not be loaded.
    """
    from . import ascend, native

    native.register()
    ascend.register()
