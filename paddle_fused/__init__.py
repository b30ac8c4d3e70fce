"""Fused operators for Ascend NPUs and for the host.

    import paddle_fused

    out = paddle_fused.rms_norm(x, weight)
    paddle_fused.dispatch_log()

Importing this package does not import paddle, because a device must be selected first. The operators import
paddle on first access. That raises SetupError if the native libraries were built for a different Paddle.

    ops                one package for each operator
    masks              attention masks, compiled to CANN's sparse modes
    compat             the operators under the names of torch_npu and MindSpeed
    contracts          CANN's rules, dtypes, limits and error numbers
    acl_errors         raises an error when CANN rejects an operator
    verification       compares calls with the operator's definition
    operator_hooks     observes the operators that Python calls
    sharding           operators on distributed tensors
    context_parallel   attention of sequences split over ranks
    dispatch           backend selection, ``use_backend``, ``dispatch_log``
    registry           the operator registrations
    ascend, native     calls into the plugin's operators; calls into the host operators
    devices            the device of a tensor
    captured           patches of ``to_static``
    host_memory        malloc settings for the CPU place
    instruction_set    the instruction set of the host kernels
    libraries          the location of the native libraries
    built_for          checks that the libraries match the installed Paddle
    paddle_release     differences between Paddle releases
    command_line       arguments, errors and exit codes of commands
    streams            stdout and stderr of commands
    strict_json        JSON without NaN and infinity
    info, parity tools: ``python -m paddle_fused.info``
"""

import importlib

from . import built_for, registry

# The modules of the public names other than operators.
_PUBLIC = {
    "AclError": "acl_errors",
    "AclErrorWatch": "acl_errors",
    "BackendError": "dispatch",
    "Verification": "verification",
    "explain_dispatch": "dispatch",
    "reset_dispatch_log": "dispatch",
    "use_backend": "dispatch",
    "dispatch_log": "dispatch",
    "load_operators": "registry",
    "verify_operators": "verification",
    "watch_acl_errors": "acl_errors",
}
_MODULES = ("compat", "contracts", "masks")


def __getattr__(name: str):
    if name == "__all__":
        return sorted([*_PUBLIC, *_operators(), *_MODULES])
    operator = None if name.startswith("_") else _operators().get(name)
    if operator is None and name not in (*_PUBLIC, *_MODULES):
        names = ", ".join(__getattr__("__all__"))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {names}")
    # Checked on first access: the build and the doctor import this package even with mismatched libraries.
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
    """The registered operators by public name."""
    return {operator.public: operator for operator in registry.operators().values()}


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
