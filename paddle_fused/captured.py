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
from types import SimpleNamespace

import paddle
from paddle.base.libpaddle import pir
from paddle.distributed.auto_parallel.static import mix_to_dist_pass, utils
from paddle.jit.dy2static import program_translator
from paddle.jit.sot import infer_meta
from paddle.jit.sot.opcode_translator import skip_files

from . import paddle_release


def run_as_they_are(module: str) -> None:
    """Tells Paddle to leave the functions of ``module``, and all that they call in this package, alone."""
    paddle.jit.ignore_module([sys.modules[module]])
    skip_files.skip_file_names.add(f"{Path(__file__).parent}/")
    skip_files.setup_skip_files()


@functools.cache
def cure() -> None:
    """Paddle 3.0 to 3.3: a process that captures many programs ends with a segmentation fault now and then;
    and programs of auto-parallel do not know all local values.
    """
    _arguments_of_blocks_are_copies()
    _failed_captures_leave_nothing()
    _local_values_have_a_mesh()


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
    recorder = paddle_release.parameter_recorder()
    if paddle_release.before(3, 3):
        _forget_failed_captures(recorder)
        return
    stock = program_translator.graph_tracing_guard

    @contextmanager
    def graph_tracing_guard(main_program):
        try:
            with stock(main_program) as context:
                yield context
        finally:
            recorder._global_parameter_recorder.pop(main_program)
            recorder._global_inplace_map.pop(main_program)

    for module in (program_translator, infer_meta):
        module.graph_tracing_guard = graph_tracing_guard


def _forget_failed_captures(recorder) -> None:
    """The same before Paddle 3.3, where no guard knows the program."""
    concrete, captured = program_translator.ConcreteProgram, recorder._global_parameter_recorder
    stock = concrete.pir_from_func_spec
    records = (captured.params_dict, captured.tensor2value, recorder._global_inplace_map.params_dict)

    def pir_from_func_spec(*args, **kwargs):
        before = [set(record) for record in records]
        try:
            return stock(*args, **kwargs)
        except BaseException:
            for record, kept in zip(records, before, strict=True):
                for program in set(record) - kept:
                    del record[program]
            raise

    concrete.pir_from_func_spec = staticmethod(pir_from_func_spec)


def _local_values_have_a_mesh() -> None:
    """A program of auto-parallel may compute with local tensors beside the distributed ones.

    Paddle gives each operator on them the mesh of what it reads. It asks even an input that is missing for
    the operator that has made it ("'NoneType' object has no attribute 'dist_attr'"), and leaves tensors of
    the layer without a mesh ("... no attribute 'process_mesh'"). Here those have that of their first reader.
    """
    stock = utils._complete_op_dist_attr

    def complete(program, block=None):
        for op in (program.global_block() if block is None else block).ops:
            if op.dist_attr is None and not all(value.initialized() for value in op.operands_source()):
                _place_beside_missing(op)
            stock(program, block=SimpleNamespace(ops=[op]))  # one by one: each has the mesh of those before
            if op.dist_attr is not None:
                _place_makers(op, op.dist_attr.process_mesh)

    utils._complete_op_dist_attr = mix_to_dist_pass._complete_op_dist_attr = complete


def _place_beside_missing(op) -> None:
    values = (*op.operands_source(), *op.results())
    attributes = [value.dist_attr() for value in values if value.initialized()]
    makers = [value.get_defining_op() for value in op.operands_source() if value.initialized()]
    attributes += [maker.dist_attr for maker in makers]
    meshes = [each.process_mesh for each in attributes if each is not None]
    if meshes:
        _place(op, meshes[0])


def _place_makers(op, mesh) -> None:
    """Puts what has made the operator's local inputs on its mesh, where it has none."""
    for value in op.operands_source():
        maker = value.get_defining_op() if value.initialized() else None
        if maker is None or maker.dist_attr is not None:
            continue
        _place_makers(maker, mesh)
        if is_parameter(value):  # all of which Paddle wants to be distributed
            replicate_parameter(value, mesh)
            _place(op, mesh)
        else:
            _place(maker, mesh)


def is_parameter(value) -> bool:
    """Whether a value of a program is a parameter of it."""
    return value.get_defining_op().name() == "builtin.parameter"


def replicate_parameter(value, mesh) -> None:
    """Makes a program's parameter a distributed one in place, the same on all of ``mesh``."""
    whole = pir.create_tensor_dist_attribute(mesh, [-1] * len(value.shape), {})
    value.set_type(pir.cvt_to_dist_type(value.type(), whole))
    _place(value.get_defining_op(), mesh)


def _place(op, mesh) -> None:
    of_inputs, of_results = (
        [value.dist_attr() if value.initialized() else None for value in values]
        for values in (op.operands_source(), op.results())
    )
    attributes = (
        [pir.Attribute() if each is None else each for each in part] for part in (of_inputs, of_results)
    )
    op.dist_attr = pir.create_op_dist_attribute(mesh, *attributes)
