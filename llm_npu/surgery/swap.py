"""Installs replacements on layer instances, and removes them.

Only attributes of instances change; parameters, buffers and state_dict are not touched. Pickling or copying a
swapped layer gives the layer as it was before: functions made here could not be loaded elsewhere.
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

SWAP = "_swap"  # attribute of a swapped layer
FUSED = "fused operators"
REDUCE = "__reduce_ex__"  # pickle and copy ask the instance for it first
ABSENT = object()  # the instance had no such attribute, only its class


@dataclass(frozen=True)
class Swap:
    """The kernels on a layer, their purpose, and the attributes that it had before."""

    kernels: tuple[str, ...]
    before: Mapping[str, object]
    purpose: str = FUSED


def install(layer: paddle.nn.Layer, replacements: Mapping[str, Replacement], purpose: str = FUSED) -> None:
    """Install all ``replacements``, {kernel: Replacement}, on a layer. A layer has one purpose at a time."""
    assert SWAP not in layer.__dict__, f"{type(layer).__name__} is swapped for {layer.__dict__[SWAP].purpose}"
    attributes = {name: value for each in replacements.values() for name, value in each.attributes.items()}
    forward = _forward(type(layer).forward, list(replacements.values()))
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
    """Restore what ``install`` replaced; returns the attributes that install it again."""
    swap = layer.__dict__[SWAP]
    upstream = _upstream_state(layer)
    taken = {name: layer.__dict__[name] for name in (*swap.before, SWAP)}
    layer.__dict__.clear()
    layer.__dict__.update(upstream)
    return taken


def _upstream_state(layer: paddle.nn.Layer) -> dict:
    """The attributes of a swapped layer as they would be without the swap."""
    before = layer.__dict__[SWAP].before
    state = {name: before.get(name, value) for name, value in layer.__dict__.items() if name != SWAP}
    return {name: value for name, value in state.items() if value is not ABSENT}


def _reduce(layer: paddle.nn.Layer, protocol: int) -> tuple:
    return copyreg.__newobj__, (type(layer),), _upstream_state(layer)


def _forward(upstream: Callable, replacements: Sequence[Replacement]) -> Callable | None:
    """The replacement of the forward ``upstream``; None if nothing changes it."""
    given = [each.forward for each in replacements if each.forward is not None]
    assert len(given) <= 1, "two kernels replace the forward of one layer"
    calls = {name: function for each in replacements for name, function in each.calls.items()}
    change = [each.arguments for each in replacements if each.arguments is not None]
    results = [each.result for each in replacements if each.result is not None]
    if not (given or calls or change or results):
        return None
    forward = given[0] if given else upstream
    if calls:
        forward = calling(forward, calls)
    if change:
        forward = _with_arguments(forward, change)
    for result in results:
        forward = _unless(result, forward)
    return forward


def calling(function: Callable, calls: Mapping[str, Callable]) -> Callable:
    """``function`` with ``calls`` in place of what its module, or a function around it, defines under these
    names. ``super`` is such a name."""
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
    """The arguments of a call of a function whose parameters are ``names``."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _with_arguments(forward: Callable, change: Sequence[Callable]) -> Callable:
    names = list(inspect.signature(forward).parameters)[1:]  # without self

    def forward_with_arguments(self, *args, **kwargs):
        arguments = by_name(names, args, kwargs)
        for each in change:
            arguments = each(self, arguments)
        return forward(self, **arguments)

    return forward_with_arguments


def _unless(result: Callable, forward: Callable) -> Callable:
    def forward_unless_known(self, *args, **kwargs):
        known = result(self, *args, **kwargs)
        return forward(self, *args, **kwargs) if known is None else known

    return forward_unless_known
