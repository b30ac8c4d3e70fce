"""How Paddle's two ways of capturing programs treat this package's functions: they run as they are.

They decide by shapes, dtypes and places, which are known while a program is captured, so Paddle need not
rewrite their source (``full_graph=True``) nor follow their bytecode (the default of ``paddle.jit.to_static``,
which rebuilds dataclasses field by field and fails with frozen ones).
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle
from paddle.jit.sot.opcode_translator import skip_files


def run_as_they_are(module: str) -> None:
    """Tells Paddle to leave the functions of ``module``, and all that they call in this package, alone."""
    paddle.jit.ignore_module([sys.modules[module]])
    skip_files.skip_file_names.add(f"{Path(__file__).parent}/")
    skip_files.setup_skip_files()
