"""Describes this rank's part of a model and its optimizer as named parts of whole tensors.

Optimizer states belong to parameters and are named after the upstream tensors in them:

    model.layers.0.self_attn.q_proj.weight.master           fp32 master weight of a low-precision parameter
    model.layers.0.self_attn.q_proj.weight.moment1          first moment of Adam, ...
    model.layers.0.self_attn.q_proj.weight.beta1_pow_acc    beta1 to the power of the step, [1]

Paddle's distributed optimizers differ in which states a rank has, and in their names:

    sharding stage 1            the parameters that _partition_parameters assigned to the rank
    stage 1 with split_param    a slice of each parameter's elements, in communication buffers
    sharding stage 2            the parameters of param2rank
    sharding stage 3            for large parameters a slice of the elements, fw_storage
    everything else             all parameters of the rank
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import paddle
from paddle.base.framework import EagerParamBase

from llm_npu.core.errors import UserError
from llm_npu.core.tensor_file import Reader
from llm_npu.models import layout
from llm_npu.models.layout import Block, Shape
from llm_npu.training.upstream_trainer import optimizer_wrappers

MASTER = "master"


@dataclass
class LocalTensor:
    """A tensor of this rank, and the locations of its parts in whole tensors.

    Attributes:
        shape: The shape of this rank's part of the parameter.
        places: The blocks of an array of ``shape``.
        begin: If set, the tensor contains only the elements of that array from ``begin`` on, in row-major
            order, possibly followed by padding.
    """

    tensor: paddle.Tensor
    shape: Shape
    places: list[Block]
    begin: int | None = None

    @cached_property
    def blocks(self) -> list[Block]:
        """The part of ``places`` that the tensor actually contains."""
        if self.begin is None:
            return self.places
        return layout.clipped(self.places, self.shape, self.begin, self.begin + self._count)

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("paddle.")

    def array(self) -> np.ndarray:
        """The values on the host; elements outside the tensor are undefined."""
        values = layout.local(self.tensor).numpy()
        if self.begin is None:
            return values
        array = np.empty(self.shape, values.dtype)
        array.reshape(-1)[self._range] = values.reshape(-1)[: self._count]
        return array

    def fill(self, array: np.ndarray) -> None:
        """Set the tensor from ``array``, which has ``shape`` and any dtype (uint16 means bfloat16)."""
        if self.begin is not None:
            values = self.tensor.numpy()
            part = layout.as_dtype(array.reshape(-1)[self._range], self.tensor.dtype)
            values.reshape(-1)[: self._count] = part
        else:
            values = layout.as_dtype(array, self.tensor.dtype)
        layout.assign(self.tensor, values)

    @property
    def _count(self) -> int:
        """The number of non-padding elements."""
        return max(0, min(math.prod(self.tensor.shape), math.prod(self.shape) - self.begin))

    @property
    def _range(self) -> slice:
        return slice(self.begin, self.begin + self._count)


def of_parameters(parameters: Mapping[str, paddle.Tensor], config) -> list[LocalTensor]:
    """This rank's part of ``parameters``, named as in ``llm_npu.models.layout.parameters``.

    ``config``: the model's configuration, or None for parameters stored under their own names (LoRA).
    """
    held = []
    for name, parameter in parameters.items():
        shape, blocks = layout.blocks(name, parameter, config)
        if (part := getattr(parameter, "fw_storage", None)) is None:
            held.append(LocalTensor(parameter, shape, blocks))
        else:
            held.append(LocalTensor(part, shape, blocks, _sharding_rank() * math.prod(part.shape)))
    return held


def of_optimizer(optimizer, parameters: Mapping[str, paddle.Tensor], config) -> list[LocalTensor]:
    """This rank's part of the states of ``optimizer`` for ``parameters``, as in ``of_parameters``.

    Creates the states if the optimizer has not taken a step yet.
    """
    wrappers = list(optimizer_wrappers(optimizer))
    inner = wrappers[-1]
    updated = {
        name: target
        for name, parameter in parameters.items()
        if not parameter.stop_gradient and (target := _updated(parameter, wrappers)) is not None
    }
    creator = next((wrapper for wrapper in wrappers if hasattr(type(wrapper), "_shard_accumulator")), inner)
    creator._create_accumulators(
        paddle.static.default_main_program().global_block(), [target for target, _ in updated.values()]
    )
    held = []
    for name, (target, begin) in updated.items():
        for kind, tensor in _states(inner, target):
            if tuple(tensor.shape) == (1,) and tuple(target.shape) != (1,):
                whole = [Block(f"{part}.{kind}", (1,), (0,), (1,), (0,)) for part in layout.parts(name)]
                held.append(LocalTensor(tensor, (1,), whole))
            else:
                split = tensor if tensor.is_dist() else parameters[name]
                shape, blocks = layout.blocks(name, split, config)
                blocks = [block._replace(name=f"{block.name}.{kind}") for block in blocks]
                held.append(LocalTensor(tensor, shape, blocks, begin))
    return held


def load(folder: Path, kind: str, tensors: list[LocalTensor]) -> None:
    """Set ``tensors`` from a checkpoint's files of ``kind``, written by any mesh.

    Raises UserError if a tensor is missing or has a different shape.
    """
    files = sorted(folder.glob(f"{kind}.safetensors")) or sorted(folder.glob(f"{kind}-*.safetensors"))
    stored = Reader(files)
    for tensor in tensors:
        array = None
        for block in tensor.places:
            if block.name not in stored:
                raise UserError(f"{folder} lacks {block.name}, which this run needs")
            values = stored[block.name]
            if values.shape != block.shape:
                raise UserError(
                    f"{folder} has {block.name} of shape {list(values.shape)}, but this run's is "
                    f"{list(block.shape)}"
                )
            if array is None:
                array = np.empty(tensor.shape, values.dtype)
            block.of(array)[...] = values[block.box]
        if array is not None:
            tensor.fill(array)


def _updated(parameter, wrappers: list) -> tuple[paddle.Tensor, int | None] | None:
    """(tensor that this rank's optimizer updates for ``parameter``, start of a slice), or None."""
    if (part := getattr(parameter, "fw_storage", None)) is not None:  # stage 3
        stand_in = EagerParamBase(shape=part.shape, dtype=part.dtype, name=f"slice@{parameter.name}")
        return stand_in, _sharding_rank() * math.prod(part.shape)
    for wrapper in wrappers:
        inside = vars(wrapper)
        if inside.get("tensor_fusion"):
            raise UserError(
                "--sharding_parallel_config enable_tensor_fusion fuses the states of many parameters, which "
                "cannot be stored by name; remove it"
            )
        if "_slice_params" in inside:  # stage 1 with split_param
            return _slice(parameter, wrapper)
        if "_rank2params" in inside:  # stage 1
            return (
                (parameter, None) if wrapper._param2rank[parameter.name] == wrapper._sharding_rank else None
            )
        if "_param2align" in inside and "_param2rank" in inside:  # stage 2
            return (parameter, None) if wrapper.param2rank[parameter.name] == wrapper._rank else None
    return parameter, None


def _slice(parameter, wrapper) -> tuple[paddle.Tensor, int] | None:
    wrapper._collect_comm_buffers()
    for buffer in wrapper._comm_buffer_list:
        view = buffer._sharding_param_grad_view.get(parameter.name)
        if view is None:
            continue
        if view._param_begin >= view._param_end:
            return None
        target = wrapper._slice_params[parameter.name]
        view.fill_slice_param(target)
        return target, view._param_begin - view._index
    raise AssertionError(f"{parameter.name} is not in a communication buffer")


def _states(inner, target) -> Iterator[tuple[str, paddle.Tensor]]:
    """(kind, tensor) of every optimizer state of ``target``."""
    master = inner._master_weights.get(target.name)
    if master is not None:
        yield MASTER, master
    for kind, tensors in inner._accumulators.items():
        tensor = tensors.get(target.name if master is None else master.name)
        if tensor is not None:
            yield kind, tensor


def _sharding_rank() -> int:
    from paddle.distributed import fleet

    return fleet.fleet._hcg.get_sharding_parallel_rank()
