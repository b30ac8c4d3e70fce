"""Environment variables that have no effect in this run, with the reason.

PaddleNLP's scripts for NPUs export a dozen variables without saying who reads them: some nobody, one is
misspelt, and others only a card's libraries.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

from llm_npu.models.library import names

# Neither Paddle 3.3 nor PaddleNLP 3.0.0b4, PaddleFormers 1.2.0 or paddle-custom-npu reads these.
UNREAD: Mapping[str, str] = {
    "MC2": f"{names.TITLE} reads FLAGS_NPU_MC2",
    "MC2_Recompute": f"{names.TITLE} reads FLAGS_NPU_MC2_Recompute",
    "MULTI_STREAM_MEMORY_REUSE": "it belongs to torch_npu",
}
# Read by a card's driver, HCCL, CANN or paddle-custom-npu.
OF_A_CARD = (
    "ASCEND_GLOBAL_LOG_LEVEL", "ASCEND_LAUNCH_BLOCKING", "ASCEND_MAX_OP_CACHE_SIZE",
    "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_SLOG_PRINT_TO_STDOUT", "FLAGS_npu_blocking_run",
    "FLAGS_npu_check_nan_inf", "FLAGS_npu_jit_compile", "FLAGS_npu_precision_mode",
    "FLAGS_npu_reuse_event", "FLAGS_npu_scale_aclnn", "FLAGS_npu_split_aclnn",
    "FLAGS_npu_storage_format", "HCCL_ALGO", "HCCL_BUFFSIZE", "HCCL_CONNECT_TIMEOUT", "HCCL_DETERMINISTIC",
    "HCCL_EXEC_TIMEOUT", "HCCL_IF_BASE_PORT", "HCCL_IF_IP", "HCCL_INTRA_PCIE_ENABLE",
    "HCCL_INTRA_ROCE_ENABLE", "HCCL_OP_BASE_FFTS_MODE_ENABLE", "HCCL_OP_EXPANSION_MODE", "HCCL_RDMA_SL",
    "HCCL_RDMA_TC", "HCCL_SOCKET_IFNAME", "HCCL_WHITELIST_DISABLE",
)  # fmt: skip
READ_HERE = (
    "FLAGS_npu_profiling_dir",
    "FLAGS_NPU_MC2",
    "FLAGS_NPU_MC2_Recompute",
    "FLAGS_selected_npus",
    "FLAGS_npus",
)
PREFIXES = ("HCCL_", "ASCEND_", "FLAGS_NPU_", "FLAGS_npu_", "MC2")
OF_INSTALLATION = ("_HOME", "_PATH", "_DIR")  # ASCEND_TOOLKIT_HOME, ASCEND_OPP_PATH, ...
NEAR = 0.9


def ineffective_variables(kind: str, environ: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """(name, why) of every variable in ``environ`` that looks meant for this run but changes nothing.

    ``kind`` is the device's (``llm_npu.device.Device``): card, virtual or cpu.
    """
    reasons = {name: UNREAD.get(name) or _misspelt(name) or _absent(name, kind) for name in sorted(environ)}
    return [(name, why) for name, why in reasons.items() if why]


def _misspelt(name: str) -> str | None:
    known = (*OF_A_CARD, *READ_HERE)
    if not name.startswith(PREFIXES) or name in known or name.endswith(OF_INSTALLATION):
        return None
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    return f"nothing reads it; is {nearest[0]} meant?" if nearest else None


def _absent(name: str, kind: str) -> str | None:
    unused = name in OF_A_CARD and kind != "card"
    return "only a card's libraries read it, and this run uses no card" if unused else None
