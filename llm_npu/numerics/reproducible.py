"""``--deterministic``: bit-identical results in every run.

Random numbers come from ``--seed``. Host kernels sum in an order that depends only on shapes, not on the
number of threads. Some libraries choose an order themselves; they read environment variables at load time, so
these are set before paddle is imported. Importing this module imports no framework. docs/numerics.md lists
the guarantees.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from llm_npu.core.errors import UserError
from llm_npu.device import Device

# Matrix products of the host: the same order for any alignment, and a fixed number of threads.
HOST = {"MKL_CBWR": "AUTO", "MKL_DYNAMIC": "FALSE", "OMP_DYNAMIC": "FALSE"}
PADDLE = {"FLAGS_cudnn_deterministic": "1", "FLAGS_embedding_deterministic": "1"}
CARD = {"npu_deterministic": "true", "HCCL_DETERMINISTIC": "true"}  # for paddle-custom-npu and HCCL


def prepare(
    deterministic: bool, device: Device, environ: MutableMapping[str, str] = os.environ
) -> dict[str, str]:
    """Set and return the environment variables of a ``deterministic`` run. Call it before importing paddle.

    Raises ValueError if the environment already contains a conflicting value.
    """
    if not deterministic:
        return {}
    needed = {**HOST, **PADDLE, **(CARD if device.kind == "card" else {})}
    for name, value in needed.items():
        other = environ.get(name, value)
        if other.lower() != value.lower():
            raise UserError(
                f"--deterministic needs {name}={value}, but the environment has {other}; unset it"
            )
    environ.update(needed)
    return needed


def condition() -> str:
    """The condition under which another run is bit-identical."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return f"deterministic: the same command is bit-identical on this machine with {threads} threads"
