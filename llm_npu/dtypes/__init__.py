"""Finds tensors and operators that would leave the NPU's cores because of their dtype, and their source.

    report = audit(model, optimizer, sample)     # before the first step
    print(report)
    with watch(model) as watched:                # during training: an AICPUWarning for every site
        train()
    print(watched.report())

    llm-npu dtypes run train.py        # warnings in any program

The cores of an Ascend card compute in float32, float16 and bfloat16. float64 and complex128 run on the AICPU,
a control processor that is orders of magnitude slower. If paddle-custom-npu does not register a kernel for a
dtype, the kernel runs on the host, with copies in both directions. This package only reports; it casts
nothing.

Importing this package imports no framework, because ``run`` selects the device before ``import paddle``.
"""

import importlib

_PUBLIC = {
    "AICPUWarning": "report",
    "DtypeCheck": "callback",
    "Finding": "report",
    "Report": "report",
    "Source": "report",
    "Watch": "watching",
    "arguments_of": "auditing",
    "audit": "auditing",
    "audit_program": "auditing",
    "watch": "watching",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str):
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
