"""The cases, one file per family; a family's title is the first line of its file."""

from __future__ import annotations

import importlib

from api_sweep.case import Case

ORDER = [
    "tensors.elementwise_unary",
    "tensors.elementwise_binary",
    "tensors.reduction",
    "tensors.manipulation",
    "tensors.indexing",
    "tensors.linalg",
    "tensors.logic",
    "tensors.search",
    "layers.activation",
    "layers.normalisation",
    "layers.convolution",
    "layers.pooling",
    "layers.loss",
    "layers.attention_and_embedding",
    "layers.recurrent",
    "tensors.creation",
    "tensors.random",
    "tensors.complex_and_fft",
    "layers.optimizer",
    "layers.static_graph",
    "tensors.sparse",
    "layers.vision",
]


def _load() -> dict[str, list[Case]]:
    modules = [importlib.import_module(f"{__name__}.{name}") for name in ORDER]
    return {module.__doc__.splitlines()[0].rstrip("."): module.CASES for module in modules}


FAMILIES = _load()
CASES = [case for cases in FAMILIES.values() for case in cases]
