"""Install replacements on layer instances, and remove them.

Only instance attributes change; parameters, buffers and state_dict are not touched. Pickling or copying a
swapped layer yields the original layer, because the functions created here cannot be unpickled elsewhere.
"""

from __future__ import annotations

import copyreg
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import paddle

from .registry import Replacement

SWAP = "_swap"  # attribute of swapped layers
FUSED = "fused operators"
REDUCE = "__reduce_ex__"  # pickle and copy look it up on the instance first
ABSENT = object()  # the attribute was not on the instance


@dataclass(frozen=True)
class Swap:
    """The kernels on a layer, their purpose, and the layer's original attributes."""

    kernels: tuple[str, ...]
    before: Mapping[str, object]
    purpose: str = FUSED


def install(layer: paddle.nn.Layer, replacements: Mapping[str, Replacement], purpose: str = FUSED) -> None:
    """Install ``replacements``, {kernel: Replacement}, on a layer. A layer can have only one purpose."""
    assert SWAP not in layer.__dict__, f"{type(layer).__name__} is swapped for {layer.__dict__[SWAP].purpose}"
    changes = list(replacements.values())
    attributes = {name: value for change in changes for name, value in change.attributes.items()}
    forward = _forward(type(layer).forward, changes)
    if forward is not None:
        attributes["forward"] = types.MethodType(forward, layer)
    attributes[REDUCE] = partial(_reduce, layer)
    before = {name: layer.__dict__.get(name, ABSENT) for name in attributes}
    layer.__dict__.update(attributes)
    layer.__dict__[SWAP] = Swap(tuple(replacements), before, purpose)


def missed_call(layer: paddle.nn.Layer, replacement: Replacement) -> str | None:
    """A name in the calls of ``replacement`` that the forward of ``layer`` never looks up."""
    code = type(layer).forward.__code__
    looked_up = code.co_names + code.co_freevars
    return next((name for name in replacement.calls if name not in looked_up), None)


def is_swapped(layer: paddle.nn.Layer, purpose: str = FUSED) -> bool:
    return SWAP in layer.__dict__ and layer.__dict__[SWAP].purpose == purpose


def kernels_of(layer: paddle.nn.Layer) -> tuple[str, ...]:
    """The kernels on a swapped layer."""
    return layer.__dict__[SWAP].kernels


def remove(layer: paddle.nn.Layer) -> dict[str, object]:
    """Undo ``install``; returns the attributes that reinstall the replacements."""
    swap = layer.__dict__[SWAP]
    upstream = _upstream_state(layer)
    taken = {name: layer.__dict__[name] for name in (*swap.before, SWAP)}
    layer.__dict__.clear()
    layer.__dict__.update(upstream)
    return taken


def _upstream_state(layer: paddle.nn.Layer) -> dict:
    """The attributes that a swapped layer would have without the swap."""
    before = layer.__dict__[SWAP].before
    state = {name: before.get(name, value) for name, value in layer.__dict__.items() if name != SWAP}
    return {name: value for name, value in state.items() if value is not ABSENT}


def _reduce(layer: paddle.nn.Layer, protocol: int) -> tuple:
    return copyreg.__newobj__, (type(layer),), _upstream_state(layer)


def _forward(upstream: Callable, replacements: Sequence[Replacement]) -> Callable | None:
    """The replacement of the forward ``upstream``; None if it stays unchanged."""
    forwards = [item.forward for item in replacements if item.forward is not None]
    assert len(forwards) <= 1, "two kernels replace the forward of one layer"
    calls = {name: function for item in replacements for name, function in item.calls.items()}
    change = [item.arguments for item in replacements if item.arguments is not None]
    results = [item.result for item in replacements if item.result is not None]
    if not (forwards or calls or change or results):
        return None
    forward = forwards[0] if forwards else upstream
    if calls:
        forward = calling(forward, calls)
    if change:
        forward = _with_arguments(forward, change)
    for result in results:
        forward = _unless(result, forward)
    return forward


def calling(function: Callable, calls: Mapping[str, Callable]) -> Callable:
    """A copy of ``function`` in which the global and closure names in ``calls`` are replaced.

    ``super`` can be replaced as well.
    """
    scope = {**function.__globals__, **calls}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = tuple(types.CellType(calls[name]) if name in calls else cell for name, cell in cells)
    copied = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, closure or None
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__qualname__ = function.__qualname__
    return copied


@paddle.jit.not_to_static
def by_name(names: Sequence[str], args: tuple, kwargs: dict) -> dict:
    """The arguments of a call by name; ``names`` are the function's parameters."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _with_arguments(forward: Callable, change: Sequence[Callable]) -> Callable:
    names = list(inspect.signature(forward).parameters)[1:]  # without self

    def forward_with_arguments(self, *args, **kwargs):
        arguments = by_name(names, args, kwargs)
        for function in change:
            arguments = function(self, arguments)
        return forward(self, **arguments)

    return forward_with_arguments


def _unless(result: Callable, forward: Callable) -> Callable:
    def forward_unless_known(self, *args, **kwargs):
        known = result(self, *args, **kwargs)
        return forward(self, *args, **kwargs) if known is None else known

    return forward_unless_known
