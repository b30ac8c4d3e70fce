"""Patches for Paddle's two ways of capturing programs, and rules that exempt this package's functions.

The functions are called unchanged. They branch on shapes, dtypes and places, which are known during capture.
Paddle therefore need not rewrite their source (``full_graph=True``) or trace their bytecode (the default of
``paddle.jit.to_static``, which rebuilds dataclasses field by field and fails on frozen ones).
"""

from __future__ import annotations

import functools
import pathlib
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


def leave_untransformed(module: str) -> None:
    """Prevents Paddle from transforming the functions of ``module`` and their callees in this package."""
    paddle.jit.ignore_module([sys.modules[module]])
    # pathlib too, which reads the libraries at the first call, and which SOT translates wrongly.
    skip_files.skip_file_names |= {f"{Path(__file__).parent}/", pathlib.__file__}
    skip_files.setup_skip_files()


@functools.cache
def apply_patches() -> None:
    """Fixes two defects of Paddle 3.0 to 3.3.

    A process that captures many programs sometimes crashes with a segmentation fault, and auto-parallel
    programs lose the mesh of some local values.
    """
    _arguments_of_blocks_are_copies()
    _failed_captures_leave_nothing()
    _local_values_have_a_mesh()


def _arguments_of_blocks_are_copies() -> None:
    """``Block.kwargs`` and ``Block.args`` return copies instead of the block's own memory.

    Paddle returns references to a block's list of argument Values, and ``to_static`` keeps these alive in a
    reference cycle after the program is freed. pybind11 keeps one Python object per address. If a Value of a
    new program is allocated at such an address, Python receives the old object, and reads freed memory once
    the list is freed.
    """
    borrowed_args, borrowed_kwargs = pir.Block.args, pir.Block.kwargs

    def args(block):
        return [pir.Value(value) for value in borrowed_args(block)]

    def kwargs(block):
        return {name: pir.Value(value) for name, value in borrowed_kwargs(block).items()}

    pir.Block.args, pir.Block.kwargs = args, kwargs


def _failed_captures_leave_nothing() -> None:
    """Drops the records of a capture when it ends, even after an error.

    Paddle stores the parameters of a program, and their Values, under the program's ``id`` until the capture
    succeeds. After a failed capture they remain. A later program at the same address then uses them: the
    parameters of another model, with freed Values.
    """
    recorder = paddle_release.parameter_recorder()
    if paddle_release.before(3, 3):
        _forget_failed_captures(recorder)
        return
    upstream = program_translator.graph_tracing_guard

    @contextmanager
    def graph_tracing_guard(main_program):
        try:
            with upstream(main_program) as context:
                yield context
        finally:
            recorder._global_parameter_recorder.pop(main_program)
            recorder._global_inplace_map.pop(main_program)

    for module in (program_translator, infer_meta):
        module.graph_tracing_guard = graph_tracing_guard


def _forget_failed_captures(recorder) -> None:
    """Does the same before Paddle 3.3, whose guard does not receive the program."""
    concrete, captured = program_translator.ConcreteProgram, recorder._global_parameter_recorder
    upstream = concrete.pir_from_func_spec
    records = (captured.params_dict, captured.tensor2value, recorder._global_inplace_map.params_dict)

    def pir_from_func_spec(*args, **kwargs):
        before = [set(record) for record in records]
        try:
            return upstream(*args, **kwargs)
        except BaseException:
            for record, kept in zip(records, before, strict=True):
                for program in set(record) - kept:
                    del record[program]
            raise

    concrete.pir_from_func_spec = staticmethod(pir_from_func_spec)


def _local_values_have_a_mesh() -> None:
    """Allows an auto-parallel program to compute with both local and distributed tensors.

    Paddle assigns each operator on local tensors the mesh of its inputs. A missing optional input has no
    producer, and Paddle fails ("'NoneType' object has no attribute 'dist_attr'"). It also leaves a layer's
    tensors without a mesh ("... no attribute 'process_mesh'"). This patch assigns their first consumer's
    mesh.
    """
    upstream = utils._complete_op_dist_attr

    def complete(program, block=None):
        for op in (program.global_block() if block is None else block).ops:
            if op.dist_attr is None and not all(value.initialized() for value in op.operands_source()):
                _place_beside_missing(op)
            upstream(
                program, block=SimpleNamespace(ops=[op])
            )  # one by one: each gets the mesh of its predecessors
            if op.dist_attr is not None:
                _place_makers(op, op.dist_attr.process_mesh)

    utils._complete_op_dist_attr = mix_to_dist_pass._complete_op_dist_attr = complete


def _place_beside_missing(op) -> None:
    values = (*op.operands_source(), *op.results())
    attributes = [value.dist_attr() for value in values if value.initialized()]
    makers = [value.get_defining_op() for value in op.operands_source() if value.initialized()]
    attributes += [maker.dist_attr for maker in makers]
    meshes = [attribute.process_mesh for attribute in attributes if attribute is not None]
    if meshes:
        _place(op, meshes[0])


def _place_makers(op, mesh) -> None:
    """Puts the producers of the operator's local inputs on ``mesh`` if they have no mesh."""
    for value in op.operands_source():
        maker = value.get_defining_op() if value.initialized() else None
        if maker is None or maker.dist_attr is not None:
            continue
        _place_makers(maker, mesh)
        if is_parameter(value):  # Paddle requires all parameters to be distributed
            replicate_parameter(value, mesh)
            _place(op, mesh)
        else:
            _place(maker, mesh)


def is_parameter(value) -> bool:
    """Whether a value of a program is one of its parameters."""
    return value.get_defining_op().name() == "builtin.parameter"


def replicate_parameter(value, mesh) -> None:
    """Replicates a program's parameter over ``mesh``, in place."""
    whole = pir.create_tensor_dist_attribute(mesh, [-1] * len(value.shape), {})
    value.set_type(pir.cvt_to_dist_type(value.type(), whole))
    _place(value.get_defining_op(), mesh)


def _place(op, mesh) -> None:
    of_inputs, of_results = (
        [value.dist_attr() if value.initialized() else None for value in values]
        for values in (op.operands_source(), op.results())
    )
    attributes = (
        [pir.Attribute() if attribute is None else attribute for attribute in part]
        for part in (of_inputs, of_results)
    )
    op.dist_attr = pir.create_op_dist_attribute(mesh, *attributes)
