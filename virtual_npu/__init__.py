"""The virtual NPU: emulates an Ascend card on the host CPU, as Paddle's device type ``npu``.

    import virtual_npu

    virtual_npu.activate()  # first, because Paddle searches for device plugins only while it is imported
    import paddle

    paddle.set_device("npu:0")

``python -m virtual_npu SCRIPT ARGS...`` runs unmodified programs on it; ``environment()`` returns the
environment for child processes. ``settings`` lists the environment variables that configure it.
"""

from paddle_fused.paddle_release import paddle_folder

from .activation import (
    LAUNCHED_DEVICE,
    LIBRARY,
    activate,
    deactivate,
    environment,
    is_active,
    is_virtual,
)
from .aicpu_warnings import AICPUWarning, AICPUWarnings, stop_aicpu_warnings
from .communication import (
    CommunicationTime,
    Transfer,
    communication_time,
    prepare_ring,
    reset_transfers,
    transfers,
)
from .host_fallbacks import HostFallback, watch_host_fallbacks
from .record import (
    NARROWER,
    STEP_BEGINS,
    STEP_ENDS,
    KernelRecord,
    card_dtypes,
    flush_journal,
    is_dry,
    journal_file,
    kernel_record,
    mark_journal,
    placement,
    record_call_sites,
    refuse,
    registered_dtypes,
    reset_kernel_record,
)
from .settings import CHECKS, aclnn_kernels, aclop_kernels, cann_level, card, checks, device_count
from .synchronizations import begin_step, end_step

__all__ = [
    "CHECKS",
    "LAUNCHED_DEVICE",
    "LIBRARY",
    "NARROWER",
    "STEP_BEGINS",
    "STEP_ENDS",
    "AICPUWarning",
    "AICPUWarnings",
    "CommunicationTime",
    "HostFallback",
    "KernelRecord",
    "Transfer",
    "aclnn_kernels",
    "aclop_kernels",
    "activate",
    "begin_step",
    "cann_level",
    "card",
    "card_dtypes",
    "checks",
    "communication_time",
    "deactivate",
    "device_count",
    "end_step",
    "environment",
    "flush_journal",
    "is_active",
    "is_dry",
    "is_virtual",
    "journal_file",
    "kernel_record",
    "mark_journal",
    "paddle_folder",
    "placement",
    "prepare_ring",
    "record_call_sites",
    "refuse",
    "registered_dtypes",
    "reset_kernel_record",
    "reset_transfers",
    "stop_aicpu_warnings",
    "transfers",
    "watch_host_fallbacks",
]
