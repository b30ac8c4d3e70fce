"""Which backend runs an operator on these very tensors, why the others did not, and what ran.

An operator has up to three backends, asked in this order:

    ascend     the operators of paddle-custom-npu, or the best composition of the card's own kernels
    native     the host kernels, on the tensors of the CPU place and of the virtual NPU
    composed   plain Paddle: the definition

Each answers with a reason to refuse, or None. The first without a reason runs. The reasons are the error when
nobody runs, the record of ``what_ran``, and the cells of ``python -m paddle_fused.info``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

BACKENDS = ("ascend", "native", "composed")
AUTO = "auto"


@functools.cache
def name_of(dtype) -> str:
    """``float32``, ``bfloat16``, ...: the name of a dtype of tensors or of captured programs."""
    return str(dtype).rpartition(".")[2].lower()


def _accepts(*_arguments) -> None:
    """A backend that refuses nothing."""


@dataclass(frozen=True)
class Backend:
    """One way to compute an operator; the three functions take the same arguments.

    ``refuses`` returns the reason not to run these arguments (a sentence without its final dot) or None.
    ``mode`` is what runs, for the record: a name of the operator or of the composition, or a function of the
    arguments that returns it. ``computed`` is the share of the definition's work that it does, a function of
    the arguments; None: all of it, always.
    """

    run: Callable[..., Any]
    refuses: Callable[..., str | None] = _accepts
    mode: str | Callable[..., str] = ""
    computed: Callable[..., float] | None = None

    def mode_of(self, arguments: tuple) -> str:
        return self.mode(*arguments) if callable(self.mode) else self.mode

    def answer(self, arguments: tuple) -> Answer:
        """What it has to say about a call."""
        reason = self.refuses(*arguments)
        if reason is not None:
            return Answer(reason, "", 0.0)
        computed = 1.0 if self.computed is None else self.computed(*arguments)
        return Answer(None, self.mode_of(arguments), computed)


class Answer(NamedTuple):
    """A backend's reason to refuse a call, or None, its mode, and the share of the work that it would do."""

    reason: str | None
    mode: str
    computed: float


class BackendError(ValueError):
    """No backend that may run the operator accepts these tensors; ``reasons`` says why, by backend."""

    # Empty in the copy that Paddle makes, from the message alone, while it captures a program.
    operator: str = ""
    reasons: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, operator: str, reasons: dict[str, str]) -> BackendError:
        lines = [f"{operator}: no backend that may run accepts these tensors."]
        lines += [f"  {backend}: {reason}." for backend, reason in reasons.items()]
        if _preference.strict:
            lines.append(f"  use_backend({_preference.name!r}, strict=True) allows no other backend.")
        raised = cls("\n".join(lines))
        raised.operator, raised.reasons = operator, reasons
        return raised


class Ran(NamedTuple):
    """What ran of one operator: ``count`` calls of ``backend`` for the first tensor's ``dtype``.

    ``refused`` holds the reasons of the backends that were asked before, ``resharded`` what had to be sent
    before tensors that are split over processes could be computed on. While a program is being captured
    (``to_static``) a call is counted once for each capture, not for each run of the program.
    """

    operator: str
    backend: str
    mode: str
    dtype: str
    count: int
    refused: dict[str, str]
    resharded: tuple[str, ...] = ()


class _Preference(NamedTuple):
    name: str
    strict: bool


class Sharding(Protocol):
    """What ``FusedOp`` asks of ``paddle_fused.sharding.Sharding``."""

    def applies(self, arguments: tuple) -> bool: ...

    def run(self, name: str, operator: Callable, arguments: tuple): ...


_preference = _Preference(AUTO, False)
_resharded: tuple[str, ...] = ()
_ran: dict[Choice, int] = {}
OPERATORS: dict[str, FusedOp] = {}  # every operator that has been imported, by its public name


class use_backend:
    """Prefers one backend, from now on or inside a ``with`` block.

        use_backend("native")
        with use_backend("composed", strict=True):
            ...

    ``name``: ``"auto"`` (the order above), or the backend to ask first; the others follow in their order.
    ``strict``: nothing else may run. With ``"auto"`` strict means ascend or native: composed is refused.
    The choice holds for the process, all threads. Raises ValueError for an unknown name, and BackendError (a
    ValueError) from a call that nobody may run.
    """

    def __init__(self, name: str, strict: bool = False):
        global _preference
        if name not in (AUTO, *BACKENDS):
            raise ValueError(
                f"use_backend: {name!r} is not a backend; accepted: {', '.join((AUTO, *BACKENDS))}."
            )
        self._before = _preference
        _preference = _Preference(name, bool(strict))

    def __enter__(self) -> use_backend:
        return self

    def __exit__(self, *_error) -> None:
        global _preference
        _preference = self._before


def what_ran() -> list[Ran]:
    """What ran since the start or the last ``reset_what_ran``, in the order of the first calls."""
    return [
        Ran(operator, backend, mode, dtype, count, dict(refused), resharded)
        for (operator, backend, mode, dtype, refused, resharded), count in _ran.items()
    ]


def reset_what_ran() -> None:
    """Empties the record of ``what_ran``."""
    _ran.clear()


@contextmanager
def resharded(notes: tuple[str, ...]) -> Iterator[None]:
    """Calls inside are recorded with what had to be sent before them."""
    global _resharded
    before, _resharded = _resharded, notes
    try:
        yield
    finally:
        _resharded = before


class Choice(NamedTuple):
    """Which backend is to run a call; ``ran`` puts it on the record of ``what_ran``."""

    operator: str
    backend: str
    mode: str
    dtype: str
    refused: tuple[tuple[str, str], ...]
    resharded: tuple[str, ...]

    def ran(self) -> None:
        _ran[self] = _ran.get(self, 0) + 1


@dataclass
class FusedOp:
    """An operator and its backends. Calling it runs the first backend that accepts the arguments.

    Arguments are positional and the same for every backend; the first is a tensor, whose dtype is recorded.
    ``sharding`` says how it computes on tensors that are split over processes: every process calls it again,
    with its parts, so that no backend is ever given a split tensor.
    """

    name: str
    ascend: Backend
    native: Backend
    composed: Backend
    sharding: Sharding | None = None
    backends: dict[str, Backend] = field(init=False)

    def __post_init__(self):
        self.backends = {name: getattr(self, name) for name in BACKENDS}
        assert self.name not in OPERATORS, self.name
        OPERATORS[self.name] = self

    def answers(self, *arguments) -> dict[str, Answer]:
        """What every backend has to say about these arguments."""
        return {name: backend.answer(arguments) for name, backend in self.backends.items()}

    def __call__(self, *arguments):
        if self.sharding is not None and self.sharding.applies(arguments):
            return self.sharding.run(self.name, self, arguments)
        choice = self.choose(*arguments)
        outputs = self.backends[choice.backend].run(*arguments)
        choice.ran()
        return outputs

    def choose(self, *arguments) -> Choice:
        """The first backend that accepts the arguments: for callers that then run many calls as one."""
        if _asking:
            raise Asked(self.name, self.answers(*arguments), _order())
        refused: dict[str, str] = {}
        for name in _order():
            backend = self.backends[name]
            reason = backend.refuses(*arguments)
            if reason is None:
                dtype = name_of(arguments[0].dtype)
                mode = backend.mode_of(arguments)
                return Choice(self.name, name, mode, dtype, tuple(refused.items()), _resharded)
            refused[name] = reason
        raise BackendError.of(self.name, refused)


class Asked(BaseException):
    """Ends a call inside ``ask`` with what every backend answered.

    ``chosen`` is the one that would run it, None if nobody would; ``refused`` holds the reasons of those that
    are asked before it.
    """

    def __init__(self, operator: str, answers: dict[str, Answer], order: tuple[str, ...]):
        self.operator, self.answers = operator, answers
        self.chosen = next((name for name in order if answers[name].reason is None), None)
        before = order if self.chosen is None else order[: order.index(self.chosen)]
        self.refused = {name: answers[name].reason for name in before}
        super().__init__(operator)


_asking = False


def ask(call: Callable[[], Any]) -> Asked:
    """What every backend answers to the first operator that ``call`` calls; nothing is computed."""
    global _asking
    _asking = True
    try:
        call()
    except Asked as asked:
        return asked
    finally:
        _asking = False
    raise ValueError("ask: the function called no fused operator.")


def _order() -> tuple[str, ...]:
    name, strict = _preference
    if name == AUTO:
        return BACKENDS[:2] if strict else BACKENDS
    return (name,) if strict else (name, *(other for other in BACKENDS if other != name))
