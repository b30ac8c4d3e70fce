"""Maps a model's parameters, fused or sharded, to the tensors of the Hugging Face layout.

Models (here PaddleNLP's Llama) differ from that layout, the upstream layout, in three ways:

    here                                      in the file
    llama.layers.0...                         model.layers.0...
    y = x W,  W [in, out]                     y = x W^T,  W [out, in]
    qkv_proj            [H, K (G + 2) D]      q_proj [K G D, H], k_proj [K D, H], v_proj [K D, H]
    gate_up_fused_proj  [H, 2 I]              gate_proj [I, H], up_proj [I, H]

with H hidden size, I intermediate size, D head size, K key/value heads and G query heads per key/value head.
The columns of ``qkv_proj`` (and its bias, if the family has one) are grouped by key/value head: its G query
heads, its key, its value. Under tensor parallelism a process has some columns or rows of a parameter; of
``gate_up_fused_proj`` it has some gate columns, followed by the same columns of the up half. Under
auto-parallel the placements determine the process's box of the parameter. A pipeline stage has a subset of
the parameters.

``Block`` covers all cases: a box of a process's array equals a box of an upstream tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import paddle

from llm_npu.core.errors import UserError

from .families import FAMILIES
from .family import UpstreamLayout
from .library import names as library_names

Shape = tuple[int, ...]

# {name of a fused projection: names in the upstream layout} of all families.
FUSED = {name: parts for family in FAMILIES.values() for name, parts in family.fused_projections.items()}


class Block(NamedTuple):
    """``array[local : local + extent]`` is ``upstream[offset : offset + extent]``, of ``shape`` as a whole.

    ``transposed``: the array is the transpose. ``offset`` and ``extent`` refer to the upstream tensor.
    """

    name: str
    shape: Shape
    offset: Shape
    extent: Shape
    local: Shape
    transposed: bool = False

    @property
    def local_extent(self) -> Shape:
        return self.extent[::-1] if self.transposed else self.extent

    @property
    def box(self) -> tuple[slice, ...]:
        """The index of the block in the upstream tensor."""
        return _box(self.offset, self.extent)

    def of(self, array: np.ndarray) -> np.ndarray:
        """The view of the block in a process's array, in the orientation of the upstream tensor."""
        view = array[_box(self.local, self.local_extent)]
        return view.T if self.transposed else view


class Patch(NamedTuple):
    """``array[local : local + extent]`` here is ``parameter[whole : whole + extent]`` of the model."""

    local: Shape
    whole: Shape
    extent: Shape


def parameters(model) -> dict:
    """{name: parameter} with the prefix of upstream names; in a pipeline, only this stage's parameters.

    LoRA parameters are omitted. Raises UserError for a tied head that is not the embedding.
    """
    tied = model.config.tie_word_embeddings
    stored_as = _stored_as(model.config)
    embedding = stored_as.embedding if stored_as else "model.embed_tokens.weight"
    if not model.base_model_prefix:  # PaddleNLP's pipeline stages have none
        named = {}
        for name, parameter in model.state_dict().items():
            first, _, rest = name.partition(".")
            head = embedding if tied else "lm_head.weight"
            named[head if first == "lm_head" else f"model.{rest}"] = parameter
        return named
    stored = getattr(model, model.base_model_prefix).state_dict().items()
    named = {f"model.{name}": parameter for name, parameter in stored if ".lora_" not in name}
    if not tied:
        head = getattr(model, "lm_head", None)  # another stage may have the head
        return named if head is None else named | {"lm_head.weight": head.weight}
    if model.lm_head.weight is not named[embedding]:
        raise UserError(
            f"{type(model).__name__} sets tie_word_embeddings but has a separate head, which would "
            "be lost; set config.tie_word_embeddings = False"
        )
    return named


def blocks(name: str, tensor, config) -> tuple[Shape, list[Block]]:
    """The shape of this process's array of the parameter ``name`` (as in ``parameters``), and its blocks.

    ``tensor``: the parameter, an optimizer state with the same sharding, or an auto-parallel tensor with its
    own placements. ``config``: the model's configuration, or None for names stored unchanged (LoRA). Raises
    UserError for placements that cannot be stored.
    """
    if tensor.is_dist():
        whole, patches = _placed(name, tensor)
    else:
        whole, patches = _split(name, tensor)
    return patches[0].extent if len(patches) == 1 else tuple(tensor.shape), [
        block for patch in patches for block in _upstream_blocks(name, whole, patch, config)
    ]


def local(tensor):
    """This process's part of an auto-parallel tensor; other tensors are returned unchanged."""
    return tensor._local_value() if tensor.is_dist() else tensor


def assign(tensor, array: np.ndarray) -> None:
    """Set this process's part of ``tensor``, in place; bfloat16 is uint16."""
    if tensor.is_dist():
        new = paddle.to_tensor(array, dtype=tensor.dtype, place=tensor.place)
        paddle.assign(new, output=tensor._local_value())
    else:
        tensor.set_value(array)


def as_dtype(array: np.ndarray, dtype: paddle.dtype) -> np.ndarray:
    """Convert ``array`` to the numpy form of ``dtype``; uint16 means bfloat16."""
    return paddle.to_tensor(array, place=paddle.CPUPlace()).astype(dtype).numpy()


def parts(name: str) -> list[str]:
    """The names of the upstream tensors in the parameter ``name``."""
    for fused, upstream in FUSED.items():
        if fused in name:
            return [name.replace(fused, part) for part in upstream]
    return [name]


def clipped(blocks: Sequence[Block], shape: Shape, begin: int, end: int) -> list[Block]:
    """The part of ``blocks`` within elements [begin, end) of an array of ``shape``, in row-major order."""
    inside = []
    for corner, extent in _rectangles(shape, begin, end):
        for block in blocks:
            low = tuple(map(max, corner, block.local))
            high = tuple(
                min(a + b, c + d)
                for a, b, c, d in zip(corner, extent, block.local, block.local_extent, strict=True)
            )
            if all(a < b for a, b in zip(low, high, strict=True)):
                moved = tuple(a - b for a, b in zip(low, block.local, strict=True))
                size = tuple(b - a for a, b in zip(low, high, strict=True))
                if block.transposed:
                    moved, size = moved[::-1], size[::-1]
                offset = tuple(a + b for a, b in zip(block.offset, moved, strict=True))
                inside.append(block._replace(offset=offset, extent=size, local=low))
    return inside


def _rectangles(shape: Shape, begin: int, end: int) -> Iterator[tuple[Shape, Shape]]:
    """Yield (corner, extent) of boxes that cover the elements [begin, end); at most three for a matrix."""
    if begin >= end:
        return
    if len(shape) == 1:
        yield (begin,), (end - begin,)
        return
    rows, width = shape[0], math.prod(shape[1:])
    if len(shape) > 2:
        raise UserError(f"a tensor of shape {list(shape)} that is split by elements cannot be stored")
    first, column = divmod(begin, width)
    last, until = divmod(end, width)
    assert last <= rows
    if first == last:
        yield (first, column), (1, until - column)
        return
    if column:
        yield (first, column), (1, width - column)
        first += 1
    if first < last:
        yield (first, 0), (last - first, width)
    if until:
        yield (last, 0), (1, until)


def _upstream_blocks(name: str, whole: Shape, patch: Patch, config) -> Iterator[Block]:
    """The blocks of one patch of the parameter ``name``, of shape ``whole`` in the model."""
    if config is not None and (stored_as := _stored_as(config)):
        part, number, count = stored_as.name(name)
        shift = number * whole[-1]
        offset = (*patch.whole[:-1], patch.whole[-1] + shift)
        yield Block(part, (*whole[:-1], count * whole[-1]), offset, patch.extent, patch.local)
        return
    runs = _runs(name, whole[-1], config) if config is not None and whole else [(name, 0, whole[-1], 0)]
    widths = dict.fromkeys((part for part, *_ in runs), 0)
    for part, begin, end, _ in runs:
        widths[part] += end - begin
    left, right = patch.whole[-1], patch.whole[-1] + patch.extent[-1]
    for part, begin, end, position in runs:
        low, high = max(left, begin), min(right, end)
        if low >= high:
            continue
        shape = (*whole[:-1], widths[part])
        offset = (*patch.whole[:-1], position + low - begin)
        extent = (*patch.extent[:-1], high - low)
        local = (*patch.local[:-1], patch.local[-1] + low - left)
        if config is not None and is_linear(part, len(whole)):
            yield Block(part, shape[::-1], offset[::-1], extent[::-1], local, transposed=True)
        else:
            yield Block(part, shape, offset, extent, local)


def is_linear(upstream_name: str, dimensions: int) -> bool:
    """Whether ``upstream_name`` is the matrix of a linear layer, which the library stores transposed."""
    is_matrix = dimensions == 2 and upstream_name.endswith(".weight")
    return is_matrix and not upstream_name.endswith(library_names.UNTRANSPOSED)


def _runs(name: str, width: int, config) -> list[tuple[str, int, int, int]]:
    """(upstream name, begin, end, position): columns [begin, end) start at ``position`` upstream."""
    names = parts(name)
    if len(names) == 1:
        return [(name, 0, width, 0)]
    if len(names) == 2:
        half = width // 2
        return [(names[0], 0, half, 0), (names[1], half, width, 0)]
    heads, groups = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads
    size = width // (heads * (groups + 2))
    runs = []
    for head in range(heads):
        begin = head * (groups + 2) * size
        for part, count in zip(names, (groups, 1, 1), strict=True):
            runs.append((part, begin, begin + count * size, head * count * size))
            begin += count * size
    return runs


def _stored_as(config) -> UpstreamLayout | None:
    family = FAMILIES.get(config.model_type)
    return family.stored_as if family else None


def tensor_parallel() -> tuple[int, int]:
    """(degree, rank) of this process in fleet's tensor parallelism; (1, 0) without it."""
    from paddle.distributed import fleet

    groups = getattr(fleet.fleet, "_hcg", None)
    if groups is None:
        return 1, 0
    return groups.get_model_parallel_world_size(), groups.get_model_parallel_rank()


def _split(name: str, tensor) -> tuple[Shape, list[Patch]]:
    """The whole shape and the patches of a parameter that tensor parallelism may split."""
    shape = tuple(tensor.shape)
    degree, rank = tensor_parallel()
    if degree == 1 or not _is_split(name, tensor):
        return shape, [Patch((0,) * len(shape), (0,) * len(shape), shape)]
    axis = tensor.split_axis
    whole = (*shape[:axis], shape[axis] * degree, *shape[axis + 1 :])
    if len(parts(name)) == 2 and axis == len(shape) - 1:
        half = shape[-1] // 2
        extent, zeros = (*shape[:-1], half), (0,) * (len(shape) - 1)
        return whole, [
            Patch((*zeros, part * half), (*zeros, (part * degree + rank) * half), extent) for part in (0, 1)
        ]
    offset = tuple(rank * size if dim == axis else 0 for dim, size in enumerate(shape))
    return whole, [Patch((0,) * len(shape), offset, shape)]


def _is_split(name: str, tensor) -> bool:
    """Whether tensor parallelism splits a parameter.

    PaddleFormers also marks ERNIE's experts, each of which is whole on one process, and biases that are equal
    on all processes as distributed.
    """
    whole = getattr(tensor, "mp_moe", False) or name.endswith("e_score_correction_bias")
    return getattr(tensor, "is_distributed", False) and not whole


def _placed(name: str, tensor) -> tuple[Shape, list[Patch]]:
    """The whole shape and the single patch of an auto-parallel tensor, from its mesh and placements."""
    whole = tuple(tensor.shape)
    mesh, extent, offset = tensor.process_mesh, list(whole), [0] * len(whole)
    ids = np.asarray(mesh.process_ids).reshape(mesh.shape)
    here = np.argwhere(ids == paddle.distributed.get_rank())
    if len(here) == 0:
        return whole, [Patch((0,) * len(whole), (0,) * len(whole), (0,) * len(whole))]
    for axis, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise UserError(f"{name} is partial over a mesh axis; reduce it before it is stored")
        if not placement.is_shard():
            continue
        dim, degree = placement.get_dim(), mesh.shape[axis]
        if extent[dim] % degree:
            raise UserError(
                f"{name} of shape {list(whole)} is split over {degree} processes along dimension {dim}, "
                "which does not divide evenly; such a split cannot be stored"
            )
        extent[dim] //= degree
        offset[dim] += int(here[0][axis]) * extent[dim]
    return whole, [Patch((0,) * len(whole), tuple(offset), tuple(extent))]


def _box(offset: Shape, extent: Shape) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + size) for begin, size in zip(offset, extent, strict=True))
