"""Compares calls of fused operators with their definition, on the tensors of the running program.

    with paddle_fused.verify_operators() as verification:
        train_one_step()
    print(verification.mismatches)

The first call with each combination of operator, mode, dtypes and shapes is compared: its outputs, and its
gradients for random output gradients. The reference is the composed definition, in float32 for 16-bit
tensors. The tolerance is derived as in ``parity``: an error may be at most twice the error of the composed
operator at the same precision, plus one rounding of the largest value. In float32 the reference itself is
inexact. There, the baseline is the effect of rounding the inputs once, and ``parity``'s ceiling is added. A
call that exceeds the tolerance but not this ceiling is repeated with several roundings of its inputs. Then
its mean error is compared with the largest error of the composed operator.

The program's results, random state and dispatch log are unchanged. A comparison needs the time and memory of
several composed calls, on the device of the tensors.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import NamedTuple

import numpy as np
import paddle

from . import dispatch
from .dispatch import FusedOp, Selection, name_of
from .parity import CEILING, DRAWS, ROUNDING

LOW = ("bfloat16", "float16")
FEW_DRAWS = 2  # for the float32 baseline; a call that exceeds it is repeated with DRAWS
SHOWN = 3  # tensors of a call in messages
# Operators that write to their arguments; the first of these arguments that is present is compared. AdamW's
# moments are excluded: Paddle rounds 1 - beta to float32, a relative error of 1e-5 in a moment.
IN_PLACE = {"fused_adamw": ("master", "param")}
Tensors = dict[str, paddle.Tensor]


class Verdict(NamedTuple):
    """The comparison of one call.

    Attributes:
        tensors: name, shape and dtype of the call's tensors.
        mode: the kernel or composition that ran on ``backend``.
        tensor: the output or gradient with the largest error relative to the tolerance.
        skipped: why the call was not compared, or "".
    """

    operator: str
    backend: str
    mode: str
    tensors: str
    tensor: str = ""
    error: float = 0.0
    allowed: float = 0.0
    skipped: str = ""

    @property
    def agrees(self) -> bool:
        return bool(self.skipped) or self.error <= self.allowed  # a NaN error does not agree

    def __str__(self) -> str:
        call = f"{self.operator} ({self.backend}{f', {self.mode}' if self.mode else ''}; {self.tensors})"
        if self.skipped:
            return f"{call} was not compared: {self.skipped}"
        verb = "agrees with" if self.agrees else "differs from"
        error = f"error {self.error:.2e} of {self.tensor}, allowed {self.allowed:.2e}"
        return f"{call} {verb} its definition: {error}"


class Verification:
    """The verdicts so far; see ``verify_operators``. ``seconds``: the time spent on comparisons."""

    def __init__(self):
        self.seconds = 0.0
        self._verdicts: dict[tuple, Verdict] = {}
        self._is_comparing = False
        self._waiting: list[tuple[_Call, object]] = []

    @property
    def verdicts(self) -> list[Verdict]:
        return list(self._verdicts.values())

    @property
    def mismatches(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.agrees]

    def observe(self, operator: FusedOp, selection: Selection, arguments: tuple) -> Callable[[object], None]:
        """An observer of ``dispatch.observed_calls``."""
        call = _Call(operator, selection, arguments)
        self.compare_waiting()
        if self._is_comparing or selection.backend == "composed" or call.key in self._verdicts:
            return _ignore
        self._verdicts[call.key] = call.verdict(skipped=call.reason_to_skip() or "it failed")
        if call.reason_to_skip():
            return _ignore
        if call.is_in_place or _is_recomputed():
            call.keep_inputs()

        def after(outputs: object) -> None:
            self._waiting.append((call, outputs))
            self.compare_waiting()

        return after

    def compare_waiting(self) -> None:
        """Compares pending calls. Calls in ``recompute`` wait for its end: it packs all saved tensors."""
        if not self._waiting or self._is_comparing or _is_recomputed():
            return
        begin = time.perf_counter()
        self._is_comparing = True
        log = dict(dispatch._calls)
        try:
            while self._waiting:
                call, outputs = self._waiting.pop()
                self._verdicts[call.key] = call.compare(outputs)
        finally:
            dispatch._calls.clear()
            dispatch._calls.update(log)
            self._is_comparing = False
            self.seconds += time.perf_counter() - begin


def _is_recomputed() -> bool:
    """Whether saved-tensor hooks are active, as in ``recompute``; Paddle allows only one pair at a time."""
    try:
        with paddle.autograd.saved_tensors_hooks(_as_it_is, _as_it_is):
            return False
    except ValueError:
        return True


def _as_it_is(tensor):
    return tensor


def _ignore(_outputs: object) -> None:
    """The observer of calls that are not compared."""


@contextmanager
def verify_operators() -> Iterator[Verification]:
    """Compares the first call of each kind in the block with its definition."""
    verification = Verification()
    with dispatch.observed_calls(verification.observe):
        yield verification
    verification.compare_waiting()


class _Call:
    """A call of an operator. Its floating-point tensors are named after the arguments."""

    def __init__(self, operator: FusedOp, selection: Selection, arguments: tuple):
        self._operator, self._selection, self._arguments = operator, selection, arguments
        self._names = list(inspect.signature(operator.composed.run).parameters)
        self._inputs = self._named_arguments(arguments)
        shapes = [f"{list(x.shape)} {name_of(x.dtype)}" for x in self._inputs.values()]
        self._shown = ", ".join([*shapes[:SHOWN], *(["..."] if len(shapes) > SHOWN else [])])
        self.key = (operator.name, selection.backend, selection.mode, *shapes)
        self._in_place = [n for n in IN_PLACE.get(operator.name, ()) if n in self._inputs][:1]
        compared = [self._inputs[name] for name in self._in_place] or self._inputs.values()
        dtypes = {name_of(x.dtype) for x in compared}
        self._dtype = next((dtype for dtype in LOW if dtype in dtypes), "float32")
        self._wanted = [] if self._in_place else [n for n, x in self._inputs.items() if not x.stop_gradient]
        self._without_gradient = [f"output {index}" for index in operator.without_gradient]
        self._gradient_sizes: list[float] = [0.0]
        # By the names of the definition's outputs.
        self._output_gradients: dict[str, np.ndarray] | None = None

    @property
    def is_in_place(self) -> bool:
        return bool(self._in_place)

    def keep_inputs(self) -> None:
        with paddle.no_grad():
            self._inputs = {name: x.clone() for name, x in self._inputs.items()}

    def verdict(self, **more) -> Verdict:
        selection = self._selection
        return Verdict(self._operator.name, selection.backend, selection.mode, self._shown, **more)

    def reason_to_skip(self) -> str | None:
        """Why the call cannot be compared, or None."""
        inputs = self._inputs.values()
        if not paddle.in_dynamic_mode():
            return "it is part of a captured program"
        if self._operator.communicates:
            return "it communicates with other ranks"
        if any(x.is_dist() for x in inputs):
            return "its tensors are distributed"
        if any(name_of(x.dtype) == "float64" for x in inputs):
            return "it computes in float64"
        if self._is_random():
            return "its dropout is random"
        return self._operator.composed.unsupported_reason(*self._arguments)

    def compare(self, outputs: object) -> Verdict:
        """The verdict on a call that returned ``outputs``."""
        try:
            with paddle.enable_grad():
                return self._compared(outputs)
        except MemoryError:
            return self.verdict(skipped="the device does not have enough memory for its definition")

    def _is_random(self) -> bool:
        named = zip(self._names, self._arguments, strict=True)
        dropouts = [x if name == "dropout" else getattr(x, "dropout", 0) for name, x in named]
        return any(dropout > 0 for dropout in dropouts)

    def _compared(self, outputs: object) -> Verdict:
        truth = self._truth(self._inputs)
        numbers = [x for x in truth.values() if x.size]
        if numbers and not any(bool(paddle.isfinite(x).any()) for x in numbers):
            return self.verdict(skipped="its definition is not finite for these tensors")
        returned = self._results(outputs, self._named_arguments(self._arguments))
        own = self._run(self._selection.backend, self._inputs)
        errors = {name: _error(own[name], truth[name]) for name in truth}
        # The values in the program, where a second call would compute different ones.
        of_program = {name: _error(x, truth[name]) for name, x in returned.items() if name in truth}
        of_program = {name: error for name, error in of_program.items() if not error <= 2 * errors[name]}
        baseline = self._baseline(truth)
        allowed = {name: self._allowed(truth[name], baseline[name]) for name in truth}
        beyond = [name for name in truth if not errors[name] <= allowed[name]]
        if beyond and all(errors[name] <= self._ceiling(truth[name]) for name in beyond):
            self._repeat(beyond, truth, errors, allowed)
        for name, error in of_program.items():
            errors[name] = max(errors[name], error, key=_nan_last)
        worst = max(truth, key=lambda name: _excess(errors[name], allowed[name]))
        return self.verdict(tensor=worst, error=errors[worst], allowed=allowed[worst])

    def _baseline(self, truth: Tensors) -> dict[str, float]:
        if self._dtype == "float32":
            draws = self._draws("composed", FEW_DRAWS, against=truth)
            return {name: max(values) for name, values in draws.items()}
        composed = self._run("composed", self._inputs)
        return {name: _error(composed[name], truth[name]) for name in truth}

    def _repeat(self, names: list[str], truth: Tensors, errors: dict, allowed: dict) -> None:
        """Replaces errors by means over draws, and tolerances by those from the largest baseline error."""
        own, composed = self._draws(self._selection.backend, DRAWS), self._draws("composed", DRAWS)
        for name in names:
            errors[name] = min(errors[name], fmean(own[name]))
            baseline = max(composed[name])
            allowed[name] = max(allowed[name], self._allowed(truth[name], baseline))

    def _draws(self, backend: str, count: int, against: Tensors | None = None) -> dict[str, list[float]]:
        """Errors of ``backend`` for several roundings of the inputs, against ``against`` or its own truth."""
        errors: dict[str, list[float]] = {}
        for seed in range(1, count + 1):
            random = np.random.default_rng(seed)
            inputs = {name: _rounded_otherwise(x, random) for name, x in self._inputs.items()}
            truth = self._truth(inputs) if against is None else against
            results = self._run(backend, inputs)
            for name, value in ((name, results[name]) for name in truth):
                errors.setdefault(name, []).append(_error(value, truth[name]))
        return errors

    def _allowed(self, truth: paddle.Tensor, baseline: float) -> float:
        if self._dtype == "float32":  # the float32 reference itself has errors up to the ceiling
            return 2 * baseline + self._ceiling(truth)
        return 2 * baseline + ROUNDING[self._dtype] * _largest(truth)

    def _ceiling(self, truth: paddle.Tensor) -> float:
        scale = max(_largest(truth), *self._gradient_sizes)
        return CEILING[self._dtype] * 2 * ROUNDING[self._dtype] * scale

    def _truth(self, inputs: Tensors) -> Tensors:
        with paddle.amp.auto_cast(enable=False):
            return self._run("composed", {name: x.astype("float32") for name, x in inputs.items()})

    def _run(self, backend: str, inputs: Tensors) -> Tensors:
        """Outputs and gradients by name."""
        leaves = {name: x.clone() if self._in_place else x.detach() for name, x in inputs.items()}
        for name, x in leaves.items():
            x.stop_gradient = name not in self._wanted
        named = zip(self._names, self._arguments, strict=True)
        arguments = [_replaced(x, leaves, name) for name, x in named]
        outputs = self._operator.backends[backend].run(*arguments)
        results = self._results(outputs, leaves)
        if self._output_gradients is None:
            random = np.random.default_rng(0)
            self._output_gradients = {
                name: random.standard_normal(x.shape, np.float32)
                for name, x in results.items()
                if not x.stop_gradient and name not in self._without_gradient
            }
            self._gradient_sizes += [float(np.abs(g).max(initial=0)) for g in self._output_gradients.values()]
        if self._wanted and self._output_gradients:
            gradients = [
                paddle.to_tensor(array, place=results[name].place)
                .astype(self._selection.dtype)
                .astype(results[name].dtype)
                for name, array in self._output_gradients.items()
            ]
            input_gradients = paddle.grad(
                [results[name] for name in self._output_gradients],
                [leaves[name] for name in self._wanted],
                gradients,
                allow_unused=True,
            )
            for name, gradient in zip(self._wanted, input_gradients, strict=True):
                if gradient is not None:
                    results[f"gradient of {name}"] = gradient
        return results

    def _named_arguments(self, arguments: tuple) -> Tensors:
        named = zip(self._names, arguments, strict=True)
        return {name: x for argument, value in named for name, x in _named(value, argument)}

    def _results(self, outputs: object, arguments: Tensors) -> Tensors:
        if self._in_place:
            return {name: arguments[name] for name in self._in_place}
        return dict(_named(outputs, "output"))


def _named(value: object, name: str) -> Iterator[tuple[str, paddle.Tensor]]:
    """The floating-point tensors in a value, including tuples, lists and dataclass fields."""
    if isinstance(value, paddle.Tensor):
        if value.is_floating_point():
            yield name, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _named(item, f"{name} {index}")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if isinstance(item := getattr(value, field.name), paddle.Tensor):
                yield from _named(item, field.name)


def _replaced(value, tensors: Tensors, name: str):
    """``value`` with these tensors substituted by name."""
    if isinstance(value, paddle.Tensor):
        return tensors.get(name, value)
    if isinstance(value, (list, tuple)):
        items = [_replaced(item, tensors, f"{name} {index}") for index, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value):
        changed = {
            field.name: tensors[field.name] for field in dataclasses.fields(value) if field.name in tensors
        }
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _rounded_otherwise(x: paddle.Tensor, random: np.random.Generator) -> paddle.Tensor:
    """``x`` times 1 - u, 1 or 1 + u, where u is one ulp."""
    signs = random.integers(-1, 2, x.shape, np.int8).astype(np.float32)
    factors = np.float32(1) + np.float32(2 * ROUNDING[name_of(x.dtype)]) * signs
    factors = paddle.to_tensor(factors, dtype="float32", place=x.place)
    rounded = (x.detach().astype("float32") * factors).astype(x.dtype)
    rounded.stop_gradient = x.stop_gradient
    return rounded


def _error(value: paddle.Tensor, truth: paddle.Tensor) -> float:
    """The largest absolute difference; NaN if only ``value`` is not finite."""
    if value.size == 0:
        return 0.0
    finite = paddle.isfinite(truth)
    difference = paddle.where(finite, value.astype("float32") - truth, paddle.zeros_like(truth))
    return float(difference.abs().max()) if bool(paddle.isfinite(difference).all()) else float("nan")


def _largest(truth: paddle.Tensor) -> float:
    finite = paddle.where(paddle.isfinite(truth), truth, paddle.zeros_like(truth))
    return float(finite.abs().max()) if truth.size else 0.0


def _excess(error: float, allowed: float) -> float:
    return _nan_last(error / allowed if allowed else error and float("inf"))


def _nan_last(number: float) -> float:
    return float("inf") if np.isnan(number) else number
