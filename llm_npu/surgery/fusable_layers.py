"""Which layers compute an operator, by the class names in the model families; imports no library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from llm_npu.models.family import FusableFamily
from llm_npu.models.paddleformers.families import FAMILIES as PADDLEFORMERS
from llm_npu.models.paddleformers.vision_language import FAMILIES as VISION_LANGUAGE
from llm_npu.models.paddlenlp.families import FAMILIES as PADDLENLP

from .registry import NotFused, Replacement

# By library.
FAMILIES: Mapping[str, tuple[FusableFamily, ...]] = {
    "paddlenlp": tuple(PADDLENLP.values()),
    "paddleformers": (*PADDLEFORMERS.values(), *VISION_LANGUAGE.values()),
}
# Classes with such layers.
MODELS = sorted({name for families in FAMILIES.values() for family in families for name in family.models})


class FusableLayer(NamedTuple):
    """A layer that computes an operator.

    Attributes:
        upstream: the layer's class in its family's record, or a base of it.
        variant: how it computes the operator, one of ``llm_npu.models.family.VARIANTS``.
    """

    upstream: type
    variant: str
    family: FusableFamily

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
        for family in families_of(kind):
            if variant := family.layers.get(operator, {}).get(kind.__name__):
                return FusableLayer(kind, variant, family)
    return None


def families_of(kind: type) -> list[FusableFamily]:
    """The families whose records list the layer class ``kind``.

    Classes of a library's package ``transformers.X`` belong to the family X: PaddleFormers has an
    ``Ernie4_5Attention`` in two of them. Its other packages are shared by all families.
    """
    library, *packages = kind.__module__.split(".")
    families = FAMILIES.get(library, ())
    if len(packages) > 2 and packages[0] == "transformers":
        return [family for family in families if family.model_type == packages[1]]
    return list(families)


def forward_of(layer, operator: str, forwards: Mapping[str, Callable]) -> Replacement | NotFused | None:
    """``forwards[variant]`` as the replacement of a layer's forward, for kernels that replace only this."""
    fusable = fusable_layer(layer, operator)
    if fusable is None:
        return None
    reason = fusable.overridden(layer)
    return NotFused(reason) if reason else Replacement(forward=forwards[fusable.variant])


def is_plain(layer, kind: type) -> bool:
    """Whether a call of ``layer`` runs only the forward of ``kind``, without hooks."""
    forward = layer.__dict__.get("forward", type(layer).forward)
    return forward is kind.forward and not (layer._forward_pre_hooks or layer._forward_post_hooks)
