"""The cases, one file per family; a family's title is the first line of its file."""

from __future__ import annotations

import importlib

from api_sweep.case import Case

ORDER = [
    "elementwise_unary",
    "elementwise_binary",
    "reduction",
    "manipulation",
    "indexing",
    "linalg",
    "logic",
    "search",
    "activation",
    "normalisation",
    "convolution",
    "pooling",
    "loss",
    "attention_and_embedding",
    "recurrent",
    "creation",
    "random",
    "complex_and_fft",
    "optimizer",
    "static_graph",
    "sparse",
    "vision",
]


def _load() -> dict[str, list[Case]]:
    modules = [importlib.import_module(f"{__name__}.{name}") for name in ORDER]
    return {module.__doc__.splitlines()[0].rstrip("."): module.CASES for module in modules}


FAMILIES = _load()
CASES = [case for cases in FAMILIES.values() for case in cases]
