"""Patches for Paddle on devices other than CUDA's: descriptions of devices, initial weights, averages."""

from __future__ import annotations

import functools
import importlib
import inspect

import paddle
from paddle.nn import initializer

from llm_npu.core.errors import UserError

# Their kernels uniform and truncated_gaussian_random are registered by paddle-custom-npu for float32 only.
FLOAT32_ONLY = (
    initializer.uniform.UniformInitializer,
    initializer.xavier.XavierInitializer,
    initializer.kaiming.MSRAInitializer,
    initializer.normal.TruncatedNormalInitializer,
)


@functools.cache
def fix_custom_devices() -> None:
    """Paddle 3.3: ``Tensor.device`` fails on a custom device ("'paddle.base.libpaddle.Place' object has no
    attribute 'get_device_type'"), and ``paddle.device("npu:0")`` raises "Unsupported device type: npu".

    ``Device`` reads a method that a custom place lacks, and accepts only the types cpu, gpu, cuda and xpu.
    PaddleFormers' Qwen3-VL reads ``Tensor.device`` in its forward. With the patch, a device of a registered
    custom type is accepted.
    """
    device = paddle.device.Device
    build, place_of = device.__new__, device._to_place

    @functools.wraps(build)
    def __new__(cls, type=None, index=None):
        if isinstance(type, paddle.base.libpaddle.Place) and type.is_custom_place():
            type, index = type.custom_device_type(), type.custom_device_id()
        return build(cls, type, index)

    @functools.wraps(place_of)
    def _to_place(self):
        if self.type in custom_types:
            return paddle.CustomPlace(self.type, self.index)
        return place_of(self)

    custom_types = set(paddle.device.get_all_custom_device_type())
    device._SUPPORTED_TYPES = device._SUPPORTED_TYPES | custom_types
    device.__new__, device._to_place = __new__, _to_place


@functools.cache
def fix_bfloat16_initializers() -> None:
    """Paddle 3.0 to 3.3: bfloat16 weights are initialized on the host CPU instead of the NPU.

    The initializers request uniform and truncated normal numbers in bfloat16, for which the plugin has no
    kernels. Under ``VIRTUAL_NPU_STRICT=1`` the first ``Linear`` is refused. The patch draws float32 numbers
    on npu and casts them, as Paddle does for float16 weights.
    """
    for kind in FLOAT32_ONLY:
        kind.forward = _in_float32(kind.forward)


def _in_float32(upstream):
    @functools.wraps(upstream)
    def forward(self, var, block=None):
        if not _is_bfloat16_on_npu(var):
            return upstream(self, var, block)
        wide = paddle.empty(var.shape, "float32")
        upstream(self, wide, block)
        wide.astype(var.dtype)._share_underline_tensor_to(var)
        return None

    return forward


def _is_bfloat16_on_npu(var) -> bool:
    """Weights are created on the current device. Values of captured programs are not on a device yet."""
    return (
        isinstance(var, paddle.Tensor)
        and var.dtype == paddle.bfloat16
        and paddle.device.get_device().startswith("npu")
    )


@functools.cache
def fix_average_without_nccl() -> None:
    """Paddle 3.3: collectives with ReduceOp.AVG fail in builds without NCCL.

    They read NCCL's version, which does not exist there ("has no attribute 'nccl_version'"). The path for old
    NCCL versions divides the output of reduce_scatter instead of its input. Groups of custom devices reject
    AVG ("Must be Min | Max | Prod | Sum"). With the patch, each rank divides its input, as NCCL does for
    floating-point numbers, and the collective sums. Integers, which NCCL divides after the sum, raise
    ValueError.
    """
    if hasattr(paddle.base.core, "nccl_version"):
        return
    paddle.base.core.nccl_version = lambda: 21000  # the first version with AVG
    # Otherwise paddle.distributed.reduce divides the tensors of all ranks, including ranks without a result.
    reduce = importlib.import_module("paddle.distributed.communication.reduce")
    reduce.is_avg_reduce_op_supported = lambda: True
    _divide_before("all_reduce", "_all_reduce_in_dygraph", 0, lambda call: True)
    _divide_before("reduce", "_reduce_in_dygraph", 0, lambda call: call["group"].rank == _root(call))
    _divide_before("reduce_scatter", "_reduce_scatter_in_dygraph", 1)
    _divide_before("reduce_scatter", "_reduce_scatter_tensor_in_dygraph", 1)


def _root(call: dict) -> int:
    return call["dst_rank_in_group"]


def _divide_before(module: str, function: str, position: int, in_place=lambda call: False) -> None:
    """Wrap a collective of paddle.distributed.communication.stream to divide its argument before the sum.

    Args:
        position: the position of the reduced argument.
        in_place: ``in_place(call)`` returns whether that argument also receives the result. If not, the
            argument is not modified.
    """
    file = importlib.import_module(f"paddle.distributed.communication.stream.{module}")
    collective = getattr(file, function)
    names = list(inspect.signature(collective).parameters)
    sum_op, average = paddle.distributed.ReduceOp.SUM, paddle.distributed.ReduceOp.AVG

    def divided(tensor, ranks: int, overwrite: bool):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise UserError(
                f"{module}: ReduceOp.AVG of {str(tensor.dtype).rpartition('.')[2]}; accepted: floating-point "
                "and complex tensors. Use SUM, and divide the result."
            )
        return tensor.scale_(1 / ranks) if overwrite else tensor / ranks

    @functools.wraps(collective)
    @paddle.no_grad()
    def run(*arguments, **named):
        call = dict(zip(names, arguments, strict=False)) | named
        if call["op"] == average:
            terms, ranks = call[names[position]], call["group"].nranks
            several, overwrite = isinstance(terms, (list, tuple)), in_place(call)
            quotients = [divided(term, ranks, overwrite) for term in (terms if several else [terms])]
            call[names[position]] = quotients if several else quotients[0]
            call["op"] = sum_op
        return collective(**call)

    setattr(file, function, run)
