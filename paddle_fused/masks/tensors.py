"""The mask tensors that plans ask for, kept on each device.

Paddle is imported by the functions: masks can be compiled and explained without it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .. import contracts
from .compiler import Plan
from .intents import OPERATOR, Dense, Intersection, Mask
from .modes import compressed_mask, compressed_prefix_mask


def mask_tensor(plan: Plan):
    """The mask of ``plan`` on the current device (True = hidden), or None.

    Errors: ContractError for queries that see no key, unless the plan gives them zeros. In a static graph the
    values of a tensor are not known, and are not checked.
    """
    if plan.mask == "none":
        return None
    import paddle

    if plan.mask == "full":
        return _full(plan)
    if not paddle.in_dynamic_mode():
        return _compressed_in_graph(plan.mask)
    return _constant(plan.mask, None, paddle.get_device())


def hidden_tensor(mask: Mask, shape: tuple[int, int]):
    """What ``mask`` hides on [Sq, Skv], as a bool tensor that broadcasts to [B, N, Sq, Skv]."""
    import paddle

    tensors = [part.hidden for part in mask.parts if isinstance(part, Dense)]
    others = tuple(part for part in mask.parts if not isinstance(part, Dense))
    if others:
        structure = Intersection(others)
        if paddle.in_dynamic_mode():
            tensors.append(_constant(structure, shape, paddle.get_device()))
        else:
            tensors.append(paddle.to_tensor(structure.to_dense(*shape)))
    hidden = _tensor(tensors[0])
    for tensor in tensors[1:]:
        hidden = paddle.logical_or(hidden, _tensor(tensor))
    return hidden


def _tensor(value):
    import paddle

    return paddle.to_tensor(value) if isinstance(value, np.ndarray) else value


@lru_cache(maxsize=16)
def _constant(what: str | Mask, shape, device: str):
    import paddle

    if what == "compressed":
        return paddle.to_tensor(compressed_mask())
    if what == "compressed_prefix":
        return paddle.to_tensor(compressed_prefix_mask())
    return paddle.to_tensor(what.to_dense(*shape))


def _compressed_in_graph(kind: str):
    """Made by two operators: a constant of 4 MiB would be stored with the program."""
    import paddle

    size = contracts.limit("attention.compressed_mask")
    column = paddle.arange(size)
    triangle = column.unsqueeze(1) < column
    if kind == "compressed":
        return triangle
    rows = contracts.limit("attention.compressed_prefix_mask_rows") - size
    return paddle.concat([triangle, (column >= size // 2).expand([rows, size])])


def _full(plan: Plan):
    import paddle

    hidden = hidden_tensor(plan.full, plan.full_shape)
    if hidden.ndim == 4 and hidden.shape[0] == 1 and hidden.shape[1] != 1:
        return hidden
    if paddle.in_dynamic_mode() and not plan.zero_rows:
        _check_rows(plan, hidden)
    return hidden


def _check_rows(plan: Plan, hidden) -> None:
    """Every query of every sequence sees a key: what the compiler could not know of a tensor."""
    if not any(isinstance(part, Dense) for part in plan.full.parts):
        return
    lengths = {(s.query_len, s.key_len) for s in plan.sequences}
    for query_len, key_len in lengths:
        if query_len and bool(hidden[..., :query_len, :key_len].all(-1).any()):
            came = f"{plan.full!r} hides all keys of a query"
            contracts.refuse("attention.hidden_rows", OPERATOR, came)
