"""Which tensors and operators would leave the NPU's cores because of their dtype, and where they come from.

    report = audit(model, optimizer, sample)     # before the first step
    print(report)
    with watch(model) as watched:                # while it trains: an AICPUWarning for every site
        train()
    print(watched.report())

An Ascend card computes in float32, float16 and bfloat16 on its cores; float64 and complex128 it leaves to its
AICPU, a control processor that is slower by orders of magnitude, and a kernel that paddle-custom-npu does not
register for a dtype runs on the host, with copies there and back. Nothing here casts anything: it says what
and where.
"""

from .audit import arguments_of, audit, audit_program
from .callback import DtypeCheck
from .report import AICPUWarning, Finding, Report
from .sources import Source
from .watch import Watch, watch

__all__ = ["AICPUWarning", "DtypeCheck", "Finding", "Report", "Source", "Watch", "arguments_of", "audit"]
__all__ += ["audit_program", "watch"]
