"""Which layers are sites of an operator: PaddleNLP's classes, by name, without importing their modules."""

from __future__ import annotations

PACKAGE = "paddlenlp.transformers"


def stock_class(layer, names) -> type | None:
    """PaddleNLP's class among ``names`` that ``layer`` is of, or derived from; None if there is none."""
    for kind in type(layer).__mro__:
        if kind.__name__ in names and kind.__module__.startswith(PACKAGE):
            return kind
    return None


def overrides_forward(layer, stock: type) -> str | None:
    """The reason to leave a layer whose class brings a forward of its own."""
    if "forward" in layer.__dict__:
        return "its forward has been replaced on the instance"
    if type(layer).forward is stock.forward:
        return None
    return f"{type(layer).__name__} has a forward of its own, not that of {stock.__name__}"
