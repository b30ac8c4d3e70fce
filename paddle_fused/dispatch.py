"""Selects the backend that runs an operator call, and records the selection and its reasons.

An operator has three backends, tried in this order:

    ascend     the operators of paddle-custom-npu, or the best composition of the card's own kernels
    native     the host kernels, for tensors on the CPU place and on the virtual NPU
    composed   plain Paddle: the definition of the operator

A backend can decline a call with a reason; the first backend that accepts it runs. The reasons appear in
``dispatch_log``, in ``python -m paddle_fused.info``, and in the error if every backend declines.
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
    """The name of a dtype, also in a captured program: ``float32``, ``bfloat16``, ..."""
    return str(dtype).rpartition(".")[2].lower()


def _supports_all(*_arguments) -> None:
    """The default of ``Backend.unsupported_reason``: the backend accepts every call."""


@dataclass(frozen=True)
class Backend:
    """One implementation of an operator. All functions receive the operator's arguments.

    Attributes:
        run: computes the operator.
        unsupported_reason: returns None, or the reason to decline the call (a sentence without final period).
        mode: the kernel or composition shown in the dispatch log, or a function that returns it.
        computed: returns the fraction of the definition's work that this backend does; None means all of it.
    """

    run: Callable[..., Any]
    unsupported_reason: Callable[..., str | None] = _supports_all
    mode: str | Callable[..., str] = ""
    computed: Callable[..., float] | None = None

    def mode_of(self, arguments: tuple) -> str:
        return self.mode(*arguments) if callable(self.mode) else self.mode

    def support(self, arguments: tuple) -> Support:
        """Whether and how the backend would run a call."""
        reason = self.unsupported_reason(*arguments)
        if reason is not None:
            return Support(reason, "", 0.0)
        computed = 1.0 if self.computed is None else self.computed(*arguments)
        return Support(None, self.mode_of(arguments), computed)


class Support(NamedTuple):
    """A backend's reason to decline a call, or None; its mode, and the fraction of the work it would do."""

    reason: str | None
    mode: str
    computed: float


class BackendError(ValueError):
    """Every allowed backend declined the call; ``reasons`` maps each backend to its reason."""

    # Both are empty in the copy that Paddle creates from the message while it captures a program.
    operator: str = ""
    reasons: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, operator: str, reasons: dict[str, str]) -> BackendError:
        lines = [f"{operator}: no allowed backend accepts these tensors."]
        lines += [f"  {backend}: {reason}." for backend, reason in reasons.items()]
        if _preference.strict:
            lines.append(f"  use_backend({_preference.name!r}, strict=True) allows no other backend.")
        raised = cls("\n".join(lines))
        raised.operator, raised.reasons = operator, reasons
        return raised


class CallRecord(NamedTuple):
    """An entry of ``dispatch_log``: ``count`` calls of ``operator`` on ``backend``.

    A call in a captured program (``to_static``) counts once per capture, not once per run.

    Attributes:
        dtype: dtype of the first tensor.
        refused: reasons of the backends tried before, by backend.
        resharded: communication required before the operator ran on distributed tensors.
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
    """The interface of ``paddle_fused.sharding.Sharding`` that ``FusedOp`` uses."""

    def applies(self, arguments: tuple) -> bool: ...

    def run(self, name: str, operator: Callable, arguments: tuple): ...


_preference = _Preference(AUTO, False)
_resharded: tuple[str, ...] = ()
_calls: dict[Selection, int] = {}
_observers: list[Observer] = []
OPERATORS: dict[str, FusedOp] = {}  # every operator imported so far, by its public name


class use_backend:
    """Selects the preferred backend, permanently or for a ``with`` block.

        use_backend("native")
        with use_backend("composed", strict=True):
            ...

    The setting applies to all threads of the process. Raises ValueError for an unknown name. Calls raise
    BackendError, a ValueError, if no allowed backend accepts them.

    Args:
        name: ``"auto"`` (the default order), or the backend to try first, before the others in that order.
        strict: allow no other backend. ``"auto"`` with ``strict`` allows ascend and native, not composed.
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


def dispatch_log() -> list[CallRecord]:
    """The calls since the start or the last ``reset_dispatch_log``, by first occurrence."""
    return [
        CallRecord(operator, backend, mode, dtype, count, dict(refused), resharded)
        for (operator, backend, mode, dtype, refused, resharded), count in _calls.items()
    ]


def reset_dispatch_log() -> None:
    """Clears the dispatch log."""
    _calls.clear()


@contextmanager
def resharded(notes: tuple[str, ...]) -> Iterator[None]:
    """Records ``notes``, the communication required before the calls in the block, with these calls."""
    global _resharded
    before, _resharded = _resharded, notes
    try:
        yield
    finally:
        _resharded = before


# Called with (operator, selection, arguments) before the backend runs. It returns a function for the outputs.
Observer = Callable[["FusedOp", "Selection", tuple], Callable[[Any], None]]


@contextmanager
def observed_calls(observer: Observer) -> Iterator[None]:
    """Calls ``observer`` for each operator call in the block, with local tensors."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


class Selection(NamedTuple):
    """The backend selected for a call; ``record`` adds the call to ``dispatch_log``."""

    operator: str
    backend: str
    mode: str
    dtype: str
    refused: tuple[tuple[str, str], ...]
    resharded: tuple[str, ...]

    def record(self) -> None:
        _calls[self] = _calls.get(self, 0) + 1


@dataclass
class FusedOp:
    """An operator and its backends. A call runs on the first backend that accepts the arguments.

    Arguments are positional and the same for every backend. The first one is a tensor; its dtype is recorded.

    Attributes:
        sharding: handles distributed tensors. Every process calls the operator again with its local shards,
            so backends receive local tensors only.
        without_gradient: positions of the outputs that are statistics.
        communicates: all ranks of a group must call the operator together, so calls must not be repeated.
    """

    name: str
    ascend: Backend
    native: Backend
    composed: Backend
    sharding: Sharding | None = None
    without_gradient: tuple[int, ...] = ()
    communicates: bool = False
    backends: dict[str, Backend] = field(init=False)

    def __post_init__(self):
        self.backends = {name: getattr(self, name) for name in BACKENDS}
        assert self.name not in OPERATORS, self.name
        OPERATORS[self.name] = self

    def support(self, *arguments) -> dict[str, Support]:
        """Which backends support these arguments."""
        return {name: backend.support(arguments) for name, backend in self.backends.items()}

    def __call__(self, *arguments):
        if self.sharding is not None and self.sharding.applies(arguments):
            return self.sharding.run(self.name, self, arguments)
        selection = self.select(*arguments)
        observed = self.observe(selection, arguments)
        outputs = self.backends[selection.backend].run(*arguments)
        selection.record()
        for after in observed:
            after(outputs)
        return outputs

    def observe(self, selection: Selection, arguments: tuple) -> list[Callable[[Any], None]]:
        """Calls the observers before the backend runs; returns the functions to call with the outputs."""
        return [observer(self, selection, arguments) for observer in _observers]

    def select(self, *arguments) -> Selection:
        """The first backend that accepts the arguments. Callers may batch the calls of one backend."""
        if _asking:
            raise _Intercepted(DispatchReport.of(self.name, self.support(*arguments), _order()))
        refused: dict[str, str] = {}
        for name in _order():
            backend = self.backends[name]
            reason = backend.unsupported_reason(*arguments)
            if reason is None:
                dtype = name_of(arguments[0].dtype)
                mode = backend.mode_of(arguments)
                return Selection(self.name, name, mode, dtype, tuple(refused.items()), _resharded)
            refused[name] = reason
        raise BackendError.of(self.name, refused)


class DispatchReport(NamedTuple):
    """The dispatch of a call, as returned by ``explain_dispatch``.

    Attributes:
        support: the support of each backend.
        chosen: the backend that would run the call, or None.
        refused: the reasons of the backends tried before it.
    """

    operator: str
    support: dict[str, Support]
    chosen: str | None
    refused: dict[str, str]

    @classmethod
    def of(cls, operator: str, support: dict[str, Support], order: tuple[str, ...]) -> DispatchReport:
        chosen = next((name for name in order if support[name].reason is None), None)
        before = order if chosen is None else order[: order.index(chosen)]
        return cls(operator, support, chosen, {name: support[name].reason for name in before})


class _Intercepted(BaseException):
    """Ends the function called by ``explain_dispatch`` at its first operator.

    It derives from BaseException, so ``except Exception`` does not catch it.
    """

    def __init__(self, report: DispatchReport):
        super().__init__(report.operator)
        self.report = report


_asking = False


def explain_dispatch(call: Callable[[], Any]) -> DispatchReport:
    """Explains the dispatch of the first operator in ``call``, without computing anything."""
    global _asking
    _asking = True
    try:
        call()
    except _Intercepted as intercepted:
        return intercepted.report
    finally:
        _asking = False
    raise ValueError("explain_dispatch: the function called no fused operator.")


def _order() -> tuple[str, ...]:
    name, strict = _preference
    if name == AUTO:
        return BACKENDS[:2] if strict else BACKENDS
    return (name,) if strict else (name, *(other for other in BACKENDS if other != name))
