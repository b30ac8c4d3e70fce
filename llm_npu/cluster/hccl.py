"""HCCL's variables are checked before a run uses them: a card would wait minutes, and name none of them.

Importing this module imports no framework.
"""

from __future__ import annotations

import os
import socket

from llm_npu.core import machines
from llm_npu.core.errors import UserError
from llm_npu.device import Device
from llm_npu.doctor import Setup
from llm_npu.doctor.checks import hccl


def check_variables(device: Device) -> None:
    """UserError for the first problem of ``llm_npu.doctor.checks.hccl.values``, with this machine's name.

    The first rank of each machine checks, on a card and on the virtual NPU, before Paddle is imported.
    """
    if device.kind == "cpu" or not machines.read().is_first_rank_of_machine:
        return
    setup = Setup(os.environ, device_name="virtual_npu" if device.kind == "virtual" else "npu:card")
    for finding in hccl.values(setup):
        if finding.level == "error":
            raise UserError(f"{finding.message} (on {socket.gethostname()}). {finding.fix}")
