"""The registry of operators. Each operator is registered once, in the ``__init__.py`` of its folder in
``ops``.

The public names of ``paddle_fused``, ``contracts``, the programs ``info`` and ``parity``, the surgery's
switches, the tests and the documentation are derived from the registrations. Each operator folder contains:

    __init__.py   ``OPERATORS``: the registrations. Does not import Paddle, because the build reads it.
    op.py         the public functions, the definition (the composed backend), the other backends
    contract.py   CANN's rules as data; absent if CANN does not have the operator
    cases.py      ``CASES``: the test cases. ``RANDOM_CASE``: for each operator, a function that returns a
                  random valid case. ``INVALID_CALLS``: invalid calls as pairs (key of the rule, call).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Cost(NamedTuple):
    """Minimum memory traffic and FLOPs of a call.

    Attributes:
        bytes: every input read and every output written once.
        in_place: most written bytes were read before, so the limit is the bandwidth of in-place updates.
    """

    bytes: int
    flops: int = 0
    in_place: bool = False


@dataclass(frozen=True)
class Operator:
    """The registration of an operator.

    Attributes:
        name: used in cases, records, reports and documentation.
        package: its package.
        cost: ``cost(item_size, backward, **sizes)`` returns the Cost of a forward call. ``item_size`` is in
            bytes. With ``backward`` it covers forward and backward.
        function_name: the name of the public function, if it differs from ``name``.
        switch: the training option that enables it in models.
        contract_modules: the modules of the package with CANN's rules, shared by its operators.
    """

    name: str
    package: str
    cost: Callable[..., Cost]
    function_name: str = ""
    switch: str | None = None
    contract_modules: tuple[str, ...] = ("contract",)

    @property
    def public(self) -> str:
        """The name of the function in ``paddle_fused``."""
        return self.function_name or self.name

    def function(self):
        """The public function; for an optimizer, the class."""
        return getattr(importlib.import_module(f"{self.package}.op"), self.public)

    def cases(self) -> list:
        """The test cases of the operator, as ``ops.case.OpCase``."""
        return [case for case in self._cases.CASES if case.operator == self.name]

    def random_case(self, random):
        """A random valid case from a numpy Generator, small enough to run thousands of them."""
        return self._cases.RANDOM_CASE[self.name](random)

    @property
    def _cases(self):
        return importlib.import_module(f"{self.package}.cases")


@functools.cache
def operators() -> dict[str, Operator]:
    """All operators by name, in the order of their folders."""
    ops = importlib.import_module(f"{__package__}.ops")
    packages = [
        module.name for module in pkgutil.iter_modules(ops.__path__, f"{ops.__name__}.") if module.ispkg
    ]
    rows = [row for package in sorted(packages) for row in importlib.import_module(package).OPERATORS]
    assert len({row.name for row in rows}) == len(rows), "a name is registered twice"
    return {row.name: row for row in rows}


def find(name: str) -> Operator:
    """The operator ``name``. Raises ValueError for an unknown name."""
    if name not in operators():
        raise ValueError(f"{name!r} is not an operator; accepted: {', '.join(sorted(operators()))}.")
    return operators()[name]


def all_cases() -> list:
    """Every case of every operator."""
    return [case for operator in operators().values() for case in operator.cases()]


def invalid_calls() -> list:
    """The test calls that violate CANN's rules: (key of the rule, call)."""
    modules = dict.fromkeys(f"{operator.package}.cases" for operator in operators().values())
    return [
        row for module in modules for row in getattr(importlib.import_module(module), "INVALID_CALLS", ())
    ]


def contract_modules() -> list[str]:
    """The modules with CANN's rules for the operators, without duplicates."""
    return list(
        dict.fromkeys(
            f"{operator.package}.{module}"
            for operator in operators().values()
            for module in operator.contract_modules
        )
    )


def load_operators() -> None:
    """Loads the host operators (``pf_...``), and the operators of an installed npu plugin, into Paddle.

    Call it before ``paddle.jit.load`` or ``paddle.inference.create_predictor`` loads a program with these
    operators. Raises RuntimeError if the host operators cannot be loaded.
    """
    from . import ascend, native

    native.register()
    ascend.register()
