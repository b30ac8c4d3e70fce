"""How a run avoids CANN's FloatStatus operators, which a chip may lack (reported for the 910C).

paddle-custom-npu runs NPUAllocFloatStatus before the first aclop of a process, in bfloat16 as well, and its
loss scaling may read NPUGetFloatStatus. The variable LLM_NPU_FLOAT_STATUS chooses what a run does about it:

==============  ======================================================================================
``isfinite``    the default: the loss scaler decides by isfinite (``llm_npu.patches.loss_scaling``)
``interposed``  the same, and a small library answers the three FloatStatus operators in CANN's place
``plugin``      neither: Paddle's loss scaler and the plugin's kernel
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
    """The value of LLM_NPU_FLOAT_STATUS; UserError if it is not one of ``CHOICES``."""
    value = environ.get(VARIABLE) or ISFINITE
    if value not in CHOICES:
        raise UserError(
            f"{VARIABLE} is {value!r}; accepted: {', '.join(CHOICES)}. "
            f"Unset it for {ISFINITE!r}, the default."
        )
    return value


def prepare() -> str:
    """Load the library if LLM_NPU_FLOAT_STATUS asks for it, before Paddle loads the plugin.

    Returns:
        One line for the user about the library; empty if it is not asked for.

    Raises:
        UserError: The variable has another value, the library cannot be built, or Paddle is already imported.
    """
    if choice() != INTERPOSED:
        return ""
    library = built()
    if "paddle" in sys.modules and not is_loaded(library):
        raise UserError(
            f"{VARIABLE}={INTERPOSED} needs a process that has not imported paddle yet: paddle loads the "
            "plugin, and the library must be loaded before it."
        )
    ctypes.CDLL(str(library), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    return f"{library} answers CANN's FloatStatus operators ({VARIABLE}={INTERPOSED})"


def built() -> Path:
    """The library in the cache folder; it is built if it is not there."""
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
    except OSError:  # RTLD_NOLOAD: it is not loaded
        return False
    return True
