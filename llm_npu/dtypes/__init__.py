"""Tensors and operators that would leave the NPU's cores because of their dtype, and their origin.

    report = audit(model, optimizer, sample)     # before the first step
    print(report)
    with watch(model) as watched:                # during training: an AICPUWarning for every site
        train()
    print(watched.report())

The cores of an Ascend card compute in float32, float16 and bfloat16. float64 and complex128 run on its AICPU,
a control processor that is orders of magnitude slower. A kernel that paddle-custom-npu does not register for
a dtype runs on the host, with copies in both directions. Nothing here casts: it reports what and where.
"""

from .audit import arguments_of, audit, audit_program
from .callback import DtypeCheck
from .report import AICPUWarning, Finding, Report
from .sources import Source
from .watch import Watch, watch

__all__ = ["AICPUWarning", "DtypeCheck", "Finding", "Report", "Source", "Watch", "arguments_of", "audit"]
__all__ += ["audit_program", "watch"]
