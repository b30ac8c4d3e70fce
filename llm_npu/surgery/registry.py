"""The registered kernels: one file of ``surgery/replacements/`` each, found by scanning the folder."""

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
    """What a kernel changes on one layer.

    Attributes:
        forward: ``function(layer, *args)`` that replaces the layer's forward and has its signature, or None.
        calls: replacements of functions that the layer's forward looks up in its module, by name. The forward
            keeps its code, signature and source.
        attributes: attributes of the instance.
        arguments: ``function(layer, arguments) -> arguments``, applied to the arguments of every call of the
            forward, by name.
        result: ``function(layer, *args)``, called before the forward; what it returns, unless it is None, is
            the result, and the forward is not called.
        is_site: whether the layer computes the operator; False for a layer that prepares its inputs.
        independent: it stays although another layer cannot be fused. Only for a layer that is not a site.
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
    """A layer that computes the operator and cannot be fused."""

    reason: str


@dataclass(frozen=True)
class Kernel:
    """A fused operator of models.

    Attributes:
        known_as: its name in LLaMA-Factory's style.
        switch: its option in openMind's style.
        replace: ``function(layer)`` that returns a Replacement, or NotFused, or None where the layer is not a
            site of the operator.
        example: ``function(layer, batch)`` that returns the calls of ``paddle_fused`` that a layer makes on a
            ``Batch``, so that the dispatcher can be asked about them. If it or its result is None, the
            backend is not known before the first step.
        in_auto: whether the kernel is applied where neither its name nor its switch is given.
        whole_model: ``replace`` takes the model, and returns {layer: Replacement or NotFused}.
        off_by_default: ``function(layer)`` that returns why the kernel is left out of a model with this site
            unless it is named or switched on, or None.
        instead_of: the kernel whose operator the sites of this one no longer call.
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
        answer = self.answers(model)
        layers = ((path, layer, answer(layer)) for path, layer in model.named_sublayers(include_self=True))
        return {
            path: layer
            for path, layer, each in layers
            if isinstance(each, NotFused) or (isinstance(each, Replacement) and each.is_site)
        }

    def left_out(self, model) -> str | None:
        """Why the kernel is left out of ``model`` by default, or None."""
        first = next(iter(self.sites(model).values()), None) if self.off_by_default else None
        return None if first is None else self.off_by_default(first)


_registered: dict[str, Kernel] = {}


def kernel(name: str, known_as: str, operator: str = "", switch: str | None = None, **more):
    """Register the decorated ``replace`` function as the kernel ``name``; ``more`` as in ``Kernel``.

    ``switch`` is that of ``operator`` of ``paddle_fused``, or a name of its own.
    """
    switch = switch or registry.find(operator).switch
    assert switch, f"{operator} is registered without a switch"

    def register(replace):
        for other in _registered.values():
            taken = {name, known_as, switch} & {other.name, other.known_as, other.switch}
            if taken:
                raise UserError(f"kernel {name!r}: {taken} is taken by the kernel {other.name!r}")
        _registered[name] = Kernel(name, known_as, switch, replace, **more)
        return replace

    return register


def scan() -> dict[str, Kernel]:
    """All kernels by name, after importing every file of ``surgery/replacements/``."""
    for module in pkgutil.iter_modules(replacements.__path__):
        importlib.import_module(f"{replacements.__name__}.{module.name}")
    return dict(sorted(_registered.items()))


def find(name: str) -> Kernel:
    """The kernel of this name, in either style; UserError if there is none."""
    for each in scan().values():
        if name in (each.name, each.known_as):
            return each
    accepted = ", ".join(f"{each.name} ({each.known_as})" for each in scan().values())
    raise UserError(f"There is no kernel {name!r}; accepted: {accepted}.")
