"""The registered kernels, one file per kernel in ``surgery/replacements/``, loaded by scanning the folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llm_npu.core.errors import UserError
from paddle_fused import registry

from . import replacements
from .batch import Batch


@dataclass(frozen=True)
class Replacement:
    """The changes of a kernel on one layer.

    Attributes:
        forward: ``function(layer, *args)`` that replaces the layer's forward, with the same signature; or
            None.
        calls: replacements of functions that the layer's forward looks up in its module, by name. The forward
            keeps its code, signature and source.
        attributes: attributes of the instance.
        arguments: ``function(layer, arguments) -> arguments``, applied to the named arguments of every call
            of the forward.
        result: ``function(layer, *args)``, called before the forward. If it does not return None, its return
            value is the result and the forward is skipped.
        is_site: whether the layer computes the operator; False for a layer that prepares its inputs.
        independent: whether it stays if another layer cannot be fused; only without ``is_site``.
    """

    forward: Callable | None = None
    calls: Mapping[str, Callable] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    arguments: Callable | None = None
    result: Callable | None = None
    is_site: bool = True
    independent: bool = False


@dataclass(frozen=True)
class NotFused:
    """The reason why a layer that computes the operator cannot be fused."""

    reason: str


@dataclass(frozen=True)
class Kernel:
    """A fused operator of models.

    Attributes:
        known_as: the name in LLaMA-Factory's style.
        switch: the option in openMind's style.
        replace: ``function(layer)`` that returns a Replacement, NotFused, or None if the layer does not
            compute the operator.
        example: ``function(layer, batch)`` that returns the ``paddle_fused`` calls of a layer on a ``Batch``,
            for which the dispatcher is queried. If it or its result is None, the backend is unknown before
            the first step.
        in_auto: whether the kernel is applied if neither its name nor its switch is set.
        whole_model: whether ``replace`` receives the model and returns {layer: Replacement or NotFused}.
        off_by_default: ``function(layer)`` that returns why the kernel is off for a model with this layer
            unless it is named or switched on; or None.
        instead_of: the kernel that this kernel replaces on the same layers.
    """

    name: str
    known_as: str
    switch: str
    replace: Callable[[object], Replacement | NotFused | Mapping | None]
    example: Callable[[object, Batch], list[Callable[[], object]] | None] | None = None
    in_auto: bool = True
    whole_model: bool = False
    off_by_default: Callable[[object], str | None] | None = None
    instead_of: str = ""

    def answers(self, model) -> Callable[[object], Replacement | NotFused | None]:
        """``replace`` for the layers of ``model``."""
        return self.replace(model).get if self.whole_model else self.replace

    def sites(self, model) -> dict[str, object]:
        """The layers of ``model`` that compute the operator, fused or not, by path."""
        replace = self.answers(model)
        layers = ((path, layer, replace(layer)) for path, layer in model.named_sublayers(include_self=True))
        return {
            path: layer
            for path, layer, answer in layers
            if isinstance(answer, NotFused) or (isinstance(answer, Replacement) and answer.is_site)
        }

    def left_out(self, model) -> str | None:
        """The reason why the kernel is off by default for ``model``; None if it is on."""
        first = next(iter(self.sites(model).values()), None) if self.off_by_default else None
        return None if first is None else self.off_by_default(first)


_registered: dict[str, Kernel] = {}


def kernel(name: str, known_as: str, operator: str = "", switch: str | None = None, **more):
    """Register the decorated ``replace`` function as the kernel ``name``; ``more`` as in ``Kernel``.

    ``switch`` defaults to the switch of ``paddle_fused``'s ``operator``.
    """
    switch = switch or registry.find(operator).switch
    assert switch, f"{operator} is registered without a switch"

    def register(replace):
        for other in _registered.values():
            taken = {name, known_as, switch} & {other.name, other.known_as, other.switch}
            if taken:
                raise UserError(f"kernel {name!r}: {taken} is already used by the kernel {other.name!r}")
        _registered[name] = Kernel(name, known_as, switch, replace, **more)
        return replace

    return register


def scan() -> dict[str, Kernel]:
    """All kernels by name, after importing every file of ``surgery/replacements/``."""
    for module in pkgutil.iter_modules(replacements.__path__):
        importlib.import_module(f"{replacements.__name__}.{module.name}")
    return dict(sorted(_registered.items()))


def find(name: str) -> Kernel:
    """The kernel called ``name``, in either style. Raises UserError for an unknown name."""
    kernels = scan().values()
    for kernel in kernels:
        if name in (kernel.name, kernel.known_as):
            return kernel
    accepted = ", ".join(f"{kernel.name} ({kernel.known_as})" for kernel in kernels)
    raise UserError(f"Unknown kernel {name!r}; accepted: {accepted}")
