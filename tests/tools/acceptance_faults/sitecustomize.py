"""Faults of a card, for every Python process that has this folder on its PYTHONPATH.

ACCEPTANCE_FAULTS names them, with blanks between. They are planted in what Paddle gives to everybody, the
operators of the plugin and the kernels, and in the files on the disk:

    missing   the plugin has no fused_rope
    wrong     flash_attention_npu gives half of what it should, in its mode for sequences of several lengths
    hangs     swiglu in float16 waits for ever, and lets no other thread of Python run
    dies      argsort ends the process with SIGSEGV
    profile   the files of a profile are cut off in their middle
"""

import atexit
import ctypes
import importlib.abc
import importlib.machinery
import os
import signal
import sys
from pathlib import Path

FAULTS = os.environ.get("ACCEPTANCE_FAULTS", "").split()
MISSING = "fused_rope"


class Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads Paddle as it is, and plants the faults in it."""

    def find_spec(self, name, path, target=None):
        if name != "paddle":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        plant()


def plant() -> None:
    import paddle
    from paddle.base import core
    from paddle.utils.cpp_extension import extension_utils as operators

    kernels = paddle._C_ops
    parse, names, run = operators.parse_op_info, core.get_all_op_names, kernels._run_custom_op
    swiglu, argsort = kernels.swiglu, kernels.argsort

    def parse_op_info(name):
        if name == MISSING:
            raise ValueError(f"{name} is not registered")
        return parse(name)

    def get_all_op_names():
        return [name for name in names() if name != MISSING]

    def run_custom_op(name, *arguments):
        outputs = run(name, *arguments)
        if name == "flash_attention_npu" and arguments[-1] is True:  # the last one: is_varlen
            outputs[0] = outputs[0] * 0.5
        return outputs

    def hang(x, *arguments):
        if x.dtype == paddle.float16:
            ctypes.PyDLL(None).pause()
        return swiglu(x, *arguments)

    def die(*arguments):
        os.kill(os.getpid(), signal.SIGSEGV)
        return argsort(*arguments)

    if "missing" in FAULTS:
        operators.parse_op_info, core.get_all_op_names = parse_op_info, get_all_op_names
    if "wrong" in FAULTS:
        kernels._run_custom_op = run_custom_op
    if "hangs" in FAULTS:
        kernels.swiglu = hang
    if "dies" in FAULTS:
        kernels.argsort = die


def cut_off(output: Path) -> None:
    for file in (output / "profile").rglob("*"):
        if file.is_file():
            os.truncate(file, file.stat().st_size // 2)


if FAULTS:
    sys.meta_path.insert(0, Planted())
if "profile" in FAULTS and "--profile" in sys.orig_argv:
    atexit.register(cut_off, Path(sys.orig_argv[sys.orig_argv.index("--output_dir") + 1]))
