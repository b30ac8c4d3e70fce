"""The mask tensors of plans."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
import paddle

from .. import contracts
from .modes import compressed_mask, compressed_prefix_mask
from .sequences import MaskPlan
from .types import OPERATOR, Dense, Intersection, Mask


def compressed(prefix: bool = False):
    """The compressed mask on the current device: [2048, 2048], or [3072, 2048] for prefixes (mode 6).

    It is the mask argument of `compat.npu_fusion_attention` in sparse modes 2, 3, 4, 7 and 8 (and 6).
    `flash_attention` does not need it.
    """
    if paddle.in_dynamic_mode():
        return _compressed_on(paddle.get_device(), prefix)
    return _compressed_in_graph(prefix)


def hidden_tensor(mask: Mask, shape: tuple[int, int] | None):
    """``mask`` on [Sq, Skv] as a bool tensor that broadcasts to [B, N, Sq, Skv]; True = masked.

    With several sequences, a mask tensor for the longest one is sliced. A single tensor needs no ``shape``.
    """
    tensors = [_cut(part.hidden, shape) for part in mask.parts if isinstance(part, Dense)]
    others = tuple(part for part in mask.parts if not isinstance(part, Dense))
    if others:
        structure = Intersection(others)
        if paddle.in_dynamic_mode():
            tensors.append(_written_out(structure, shape, paddle.get_device()))
        else:
            tensors.append(paddle.to_tensor(structure.to_dense(*shape)))
    hidden = tensors[0]
    for tensor in tensors[1:]:
        hidden = paddle.logical_or(hidden, tensor)
    return hidden


def check_rows(plan: MaskPlan, hidden_of_plan: Callable, operator: str) -> None:
    """Raises ContractError if a mask tensor has a fully masked row.

    ``hidden_of_plan`` returns the full mask of the plan.

    Skips the check if the plan zeroes such rows, while a program is captured, or if the tensor is
    distributed. Every other call checks and synchronizes with the device, because a change of the tensor's
    values cannot be detected (``set_value`` and ``copy_`` do not change its ``inplace_version``).
    """
    tensors = [part for part in plan.full.parts if isinstance(part, Dense)] if plan.full is not None else []
    if not tensors or plan.zero_rows or not paddle.in_dynamic_mode():
        return
    if not all(_can_be_read(part.hidden) for part in tensors):
        return
    hidden = hidden_of_plan()
    for query_len, key_len in {(s.query_len, s.key_len) for s in plan.sequences}:
        if query_len and bool(hidden[..., :query_len, :key_len].all(-1).any()):
            received = f"{plan.full!r} masks all keys of a query"
            # Each operator's rule names the operator's own option for such rows.
            rule = "hidden_rows_of_intents" if operator == OPERATOR else "hidden_rows"
            contracts.refuse(f"attention.{rule}", operator, received)


def _can_be_read(hidden) -> bool:
    return isinstance(hidden, np.ndarray) or (isinstance(hidden, paddle.Tensor) and not hidden.is_dist())


def _is_on_another_device(hidden) -> bool:
    return _can_be_read(hidden) and not hidden.place._equals(paddle.framework._current_expected_place())


def _cut(hidden, shape):
    if isinstance(hidden, np.ndarray):
        hidden = paddle.to_tensor(hidden)
    elif _is_on_another_device(hidden):
        hidden = hidden.to(paddle.device.get_device())
    if hidden.ndim == 2 and shape is not None and tuple(hidden.shape) != shape:
        return hidden[: shape[0], : shape[1]]
    return hidden


@lru_cache(maxsize=4)  # a model has few masks, and each needs Sq * Skv bytes
def _written_out(mask: Mask, shape, device: str):
    return paddle.to_tensor(mask.to_dense(*shape))


@cache
def _compressed_on(device: str, prefix: bool):
    return paddle.to_tensor(compressed_prefix_mask() if prefix else compressed_mask())


def _compressed_in_graph(prefix: bool):
    """Computed by a few operators, because a constant of 4 MiB would be saved with the program."""
    size = contracts.limit("attention.compressed_mask")
    column = paddle.arange(size)
    triangle = column.unsqueeze(1) < column
    if not prefix:
        return triangle
    rows = contracts.limit("attention.compressed_prefix_mask_rows") - size
    return paddle.concat([triangle, (column >= size // 2).expand([rows, size])])
