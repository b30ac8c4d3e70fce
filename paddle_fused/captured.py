"""Paddle's two ways of capturing programs: what they do with this package's functions, and their cures.

The functions run as they are. They decide by shapes, dtypes and places, which are known while a program is
captured, so Paddle need not rewrite their source (``full_graph=True``) nor follow their bytecode (the default
of ``paddle.jit.to_static``, which rebuilds dataclasses field by field and fails with frozen ones).
"""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from pathlib import Path

import paddle
from paddle.base.libpaddle import pir
from paddle.jit.dy2static import parameter_recorder, program_translator
from paddle.jit.sot import infer_meta
from paddle.jit.sot.opcode_translator import skip_files


def run_as_they_are(module: str) -> None:
    """Tells Paddle to leave the functions of ``module``, and all that they call in this package, alone."""
    paddle.jit.ignore_module([sys.modules[module]])
    skip_files.skip_file_names.add(f"{Path(__file__).parent}/")
    skip_files.setup_skip_files()


@functools.cache
def cure() -> None:
    """Paddle 3.3: a process that captures many programs ends with a segmentation fault now and then."""
    if paddle.__version__.startswith("3.3."):
        _arguments_of_blocks_are_copies()
        _failed_captures_leave_nothing()


def _arguments_of_blocks_are_copies() -> None:
    """``Block.kwargs`` and ``Block.args`` are no longer the memory of a block.

    Python was given the very memory in which a block keeps the Values of its arguments, and ``to_static``
    keeps them in a reference cycle when the program is long gone. pybind11 has one Python object for an
    address: where a list of Values of a new program, such as the outputs of a custom operator, comes to stand
    in that memory, Python gets the old object for one of them, and reads freed memory as soon as the list is
    gone. Here Python gets Values of its own.
    """
    borrowed_args, borrowed_kwargs = pir.Block.args, pir.Block.kwargs

    def args(block):
        return [pir.Value(value) for value in borrowed_args(block)]

    def kwargs(block):
        return {name: pir.Value(value) for name, value in borrowed_kwargs(block).items()}

    pir.Block.args, pir.Block.kwargs = args, kwargs


def _failed_captures_leave_nothing() -> None:
    """What a capture has recorded is forgotten when it ends, also when it ends with an error.

    Paddle keeps the parameters of a program, and the Values that stand for them, by the program's ``id``
    until its capture has succeeded. After one that failed they stayed. A later program at the same address
    took them for its own: parameters of another model, whose Values lie in freed memory.
    """
    stock = program_translator.graph_tracing_guard

    @contextmanager
    def graph_tracing_guard(main_program):
        try:
            with stock(main_program) as context:
                yield context
        finally:
            parameter_recorder._global_parameter_recorder.pop(main_program)
            parameter_recorder._global_inplace_map.pop(main_program)

    for module in (program_translator, infer_meta):
        module.graph_tracing_guard = graph_tracing_guard
