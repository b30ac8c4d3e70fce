"""``--deterministic``: bit-identical results in every run.

Random numbers are drawn from ``--seed``, and host kernels sum in an order that depends on shapes only, not on
the number of threads. What remains are libraries that choose an order themselves. They read environment
variables when they are loaded, so these are set before paddle is imported. Importing this module imports no
framework. docs/numerics.md states the guarantees.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from llm_npu.core.errors import UserError
from llm_npu.device import Device

# The host's matrix products: one order whatever the alignment; a fixed number of threads.
HOST = {"MKL_CBWR": "AUTO", "MKL_DYNAMIC": "FALSE", "OMP_DYNAMIC": "FALSE"}
PADDLE = {"FLAGS_cudnn_deterministic": "1", "FLAGS_embedding_deterministic": "1"}
CARD = {"npu_deterministic": "true", "HCCL_DETERMINISTIC": "true"}  # for paddle-custom-npu and HCCL


def prepare(
    deterministic: bool, device: Device, environ: MutableMapping[str, str] = os.environ
) -> dict[str, str]:
    """Set the environment of a ``deterministic`` run, and return it. Call it before importing paddle.

    ValueError if the environment already has a conflicting setting.
    """
    if not deterministic:
        return {}
    needed = {**HOST, **PADDLE, **(CARD if device.kind == "card" else {})}
    for name, value in needed.items():
        other = environ.get(name, value)
        if other.lower() != value.lower():
            raise UserError(
                f"--deterministic needs {name}={value}, but the environment has {other}; unset it."
            )
    environ.update(needed)
    return needed


def condition() -> str:
    """The condition under which another run gives the same bits."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return f"deterministic: the same command gives the same bits on this machine with {threads} threads"
