"""Avoids CANN's FloatStatus operators, which a chip may lack (reported for the 910C).

paddle-custom-npu runs NPUAllocFloatStatus before the first aclop of a process, in bfloat16 as well, and its
loss scaling may read NPUGetFloatStatus. The variable LLM_NPU_FLOAT_STATUS selects the workaround:

==============  ======================================================================================
``isfinite``    default: the loss scaler uses isfinite (``llm_npu.patches.loss_scaling``)
``interposed``  also replaces the three FloatStatus operators by a small library
``plugin``      none: Paddle's loss scaler and the plugin's kernel
==============  ======================================================================================
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from llm_npu.core.errors import UserError

from .compiler import build_library

VARIABLE = "LLM_NPU_FLOAT_STATUS"
ISFINITE, INTERPOSED, PLUGIN = CHOICES = ("isfinite", "interposed", "plugin")
SOURCE = Path(__file__).parent / "data" / "float_status.c"
NAME = "libllm_npu_float_status.so"


def choice(environ: Mapping[str, str] = os.environ) -> str:
    """The value of LLM_NPU_FLOAT_STATUS. Raises UserError if it is not one of ``CHOICES``."""
    value = environ.get(VARIABLE) or ISFINITE
    if value not in CHOICES:
        raise UserError(
            f"{VARIABLE} is {value!r}; accepted: {', '.join(CHOICES)}. "
            f"Unset it for {ISFINITE!r}, the default."
        )
    return value


def prepare() -> str:
    """Load the library if LLM_NPU_FLOAT_STATUS is ``interposed``, before Paddle loads the plugin.

    Returns:
        A message about the loaded library, or "".

    Raises:
        UserError: The variable has another value, the library cannot be built, or Paddle is already imported.
    """
    if choice() != INTERPOSED:
        return ""
    library = built()
    if "paddle" in sys.modules and not is_loaded(library):
        raise UserError(
            f"{VARIABLE}={INTERPOSED} needs a process that has not imported paddle: the library must be "
            "loaded before the plugin, which paddle loads"
        )
    ctypes.CDLL(str(library), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    return f"{library} replaces CANN's FloatStatus operators ({VARIABLE}={INTERPOSED})"


def built() -> Path:
    """The library in the cache folder, built on first use."""
    from llm_npu.core.cache import cached  # imports numpy

    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = cached(f"float_status/{digest}_{platform.machine()}", _build)
    return folder / NAME


def _build(folder: Path) -> None:
    build_library(folder / NAME, NAME, ["-O2", str(SOURCE), "-ldl"])


def is_loaded(library: Path) -> bool:
    """Whether this process has loaded ``library``."""
    try:
        ctypes.CDLL(str(library), os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # not loaded
        return False
    return True
