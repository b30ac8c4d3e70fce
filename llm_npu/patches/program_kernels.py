"""Restricts auto-parallel programs to kernels that a card has.

Paddle 3.3 inserts operators into programs for which neither paddle-custom-npu nor Paddle's custom-device
support has a kernel: ``add_n`` and collectives in bfloat16, ``reduce_scatter`` and ``share_data_`` in any
dtype. They
would fall back to the host, which has no such collectives. This patch composes them from existing kernels.
"""

from __future__ import annotations

import functools

import paddle
from paddle.distributed.auto_parallel.static import engine

import virtual_npu


def on_custom_device() -> bool:
    """Whether programs are currently built for a custom device."""
    return isinstance(paddle.framework._current_expected_place_(), paddle.CustomPlace)


@functools.cache
def use_available_kernels() -> None:
    """Rewrite programs for a custom device when they are built, before they are split into stages."""
    upstream = engine.remove_unuseful_comm_op_pass

    @functools.wraps(upstream)
    def remove_unuseful_comm_op_pass(program):
        upstream(program)
        if on_custom_device():
            role = paddle.pir.get_op_role()
            with paddle.static.program_guard(program):
                for op in program.global_block().ops:
                    _replace(op)
            paddle.pir.set_op_role(role)

    engine.remove_unuseful_comm_op_pass = remove_unuseful_comm_op_pass


def _replace(op) -> None:
    name = op.name().removeprefix("pd_op.").removesuffix("_")
    if name == "share_data":  # shares its input's memory
        op.result(0).replace_all_uses_with(op.operand_source(0))
        op.erase()
    elif name in REPLACEMENTS and not _has_kernel(name, _dtype(op.result(0))):
        _begin(op)
        new = REPLACEMENTS[name](op)
        op.result(0).replace_all_uses_with(new)
        op.erase()


def _begin(op) -> None:
    """Insert operators created from now on before ``op``, with the same role in the step."""
    paddle.pir.set_insertion_point(op)
    paddle.pir.set_op_role(op.op_role)


def _added(op):
    total, *others = (operand.source() for operand in op.operand_source(0).get_defining_op().operands())
    for other in others:
        total = paddle._C_ops.add(total, other)
    return total


def _sent(op, kernel: str, *attributes):
    """Call the collective ``kernel``, losslessly through float32 if it does not support the dtype."""
    source = op.operand_source(0)
    dtype = _dtype(source)
    if _has_kernel(kernel, dtype):
        return getattr(paddle._C_ops, kernel)(source, *attributes)
    return getattr(paddle._C_ops, kernel)(paddle.cast(source, "float32"), *attributes)


def _same(kernel: str, *attributes: str):
    """A replacement by the collective itself, with the listed attributes."""

    def replaced(op):
        values = op.attrs()
        sent = _sent(op, kernel, *(values[name] for name in attributes))
        return paddle.cast(sent, op.result(0).dtype)

    return replaced


def _scattered(op):
    """All-to-all followed by a local sum, which transfers the same number of bytes."""
    attributes = op.attrs()
    parts = _sent(op, "all_to_all", attributes["ring_id"])
    terms = parts.reshape([attributes["nranks"], *op.result(0).shape])
    return paddle.cast(terms.sum(0), op.result(0).dtype)


REPLACEMENTS = {
    "add_n": _added,
    "all_reduce": _same("all_reduce", "ring_id", "reduce_type"),
    "all_gather": _same("all_gather", "ring_id", "nranks"),
    "all_to_all": _same("all_to_all", "ring_id"),
    "reduce_scatter": _scattered,
}


def _dtype(value) -> str:
    return str(value.dtype).rpartition(".")[2].lower()


def _has_kernel(kernel: str, dtype: str) -> bool:
    """Whether a card has a kernel for the dtype, from its plugin or from Paddle for all custom devices."""
    if virtual_npu.is_active():
        return virtual_npu.placement(kernel, dtype) != "host"
    return dtype in virtual_npu.registered_dtypes("", "npu").get(kernel, ())
