"""Fused operators for Ascend NPUs and for the host, and the virtual NPU that stands in for a card.

    import paddle_fused

    out = paddle_fused.rms_norm(x, weight)
    paddle_fused.what_ran()

Importing this package imports no framework: ``paddle_fused.virtual_npu`` has to act before paddle is
imported. The operators import it when they are first asked for; SetupError then says so if the native
libraries were built for another Paddle.
"""

import importlib

from . import built_for, registry

# The module of each public name that is no operator.
_PUBLIC = {
    "BackendError": "dispatch",
    "ask": "dispatch",
    "reset_what_ran": "dispatch",
    "use_backend": "dispatch",
    "what_ran": "dispatch",
    "load_operators": "registry",
}
_MODULES = ("compat", "contracts", "masks")


def __getattr__(name: str):
    if name == "__all__":
        return sorted([*_PUBLIC, *_operators(), *_MODULES, "virtual_npu"])
    operator = None if name.startswith("_") else _operators().get(name)
    if operator is None and name not in (*_PUBLIC, *_MODULES):
        names = ", ".join(__getattr__("__all__"))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {names}")
    # Not on import: what rebuilds the libraries, or says what is wrong with them, imports this package, too.
    built_for.check_package()
    if operator is not None:
        value = operator.function()
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def _operators() -> dict[str, registry.Operator]:
    """By public name."""
    return {operator.public: operator for operator in registry.operators().values()}


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
