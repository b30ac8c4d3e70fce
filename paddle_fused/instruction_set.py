"""Prints the instruction set of the host kernels on this machine: ``python -m paddle_fused.instruction_set``.

The kernels use PADDLE_FUSED_ISA, or the widest instruction set of the machine. An unsupported name ends the
process with a message on stderr. Importing this module imports no framework.
"""

from __future__ import annotations

import ctypes
import sys

from . import command_line, libraries, paddle_release

LIBRARY = libraries.folder() / libraries.KERNELS
OPENMP = "libiomp5.so"  # the kernels share the copy in Paddle's wheel
# Mangled names of active_isa() and isa_name(Isa) in csrc/kernels/isa.h.
ACTIVE, NAME = "_ZN12paddle_fused7kernels10active_isaEv", "_ZN12paddle_fused7kernels8isa_nameENS0_3IsaE"


def chosen() -> str:
    """``baseline``, ``neon``, ``avx2``, ``avx512``, ``avx512_bf16`` or ``amx``.

    Raises SetupError if the library is not built, OSError if it cannot be loaded.
    """
    libraries.check_built()
    paddle = paddle_release.paddle_folder()
    if paddle is not None and (paddle / "libs" / OPENMP).is_file():
        ctypes.CDLL(str(paddle / "libs" / OPENMP), ctypes.RTLD_GLOBAL)
    kernels = ctypes.CDLL(str(LIBRARY))
    name = getattr(kernels, NAME)
    name.restype = ctypes.c_char_p
    return name(getattr(kernels, ACTIVE)()).decode()


def main(_argv: list[str]) -> None:
    print(chosen())


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
