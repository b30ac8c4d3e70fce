"""Which layers compute an operator, by the class names in the model families; imports no library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from llm_npu.models.family import Family
from llm_npu.models.paddleformers.families import FAMILIES as PADDLEFORMERS
from llm_npu.models.paddlenlp.families import FAMILIES as PADDLENLP

from .registry import NotFused, Replacement


class Library(NamedTuple):
    """A model library: its display name and its families."""

    title: str
    families: Mapping[str, Family]


# By package.
LIBRARIES = {
    "paddlenlp.": Library("PaddleNLP", PADDLENLP),
    "paddleformers.": Library("PaddleFormers", PADDLEFORMERS),
}
RECORDS = [family for library in LIBRARIES.values() for family in library.families.values()]
MODELS = sorted({name for family in RECORDS for name in family.models})  # classes with such layers


class FusableLayer(NamedTuple):
    """A layer that computes an operator.

    Attributes:
        upstream: the layer's class in its family's record, or a base of it.
        variant: how it computes the operator, one of ``llm_npu.models.family.VARIANTS``.
    """

    upstream: type
    variant: str
    family: Family

    def overridden(self, layer) -> str | None:
        """The reason not to fuse a layer with an overridden forward; None if it has the upstream forward."""
        if "forward" in layer.__dict__:
            return "its forward has been replaced on the instance"
        if type(layer).forward is self.upstream.forward:
            return None
        return f"{type(layer).__name__} overrides the forward of {self.upstream.__name__}"


def fusable_layer(layer, operator: str) -> FusableLayer | None:
    """``layer`` as a fusable layer of ``operator``; None for any other layer."""
    for kind in type(layer).__mro__:
        library = library_of(kind)
        for family in library.families.values() if library else ():
            variant = family.layers.get(operator, {}).get(kind.__name__)
            if variant and (not family.package or f".{family.package}." in kind.__module__):
                return FusableLayer(kind, variant, family)
    return None


def forward_of(layer, operator: str, forwards: Mapping[str, Callable]) -> Replacement | NotFused | None:
    """``forwards[variant]`` as the replacement of a layer's forward, for kernels that replace only this."""
    fusable = fusable_layer(layer, operator)
    if fusable is None:
        return None
    reason = fusable.overridden(layer)
    return NotFused(reason) if reason else Replacement(forward=forwards[fusable.variant])


def library_of(kind: type) -> Library | None:
    """The library that defines a layer class."""
    matching = (library for package, library in LIBRARIES.items() if kind.__module__.startswith(package))
    return next(matching, None)


def is_plain(layer, kind: type) -> bool:
    """Whether a call of ``layer`` runs only the forward of ``kind``, without hooks."""
    forward = layer.__dict__.get("forward", type(layer).forward)
    return forward is kind.forward and not (layer._forward_pre_hooks or layer._forward_post_hooks)
