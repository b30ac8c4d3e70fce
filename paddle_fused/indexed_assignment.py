"""``x[item] = value`` by ``index_put_``, for values that Paddle's own kernels handle wrongly.

Paddle 3.1.1 to 3.3 on the CPU:

- ``index_elementwise_put_with_tensor_grad`` steps through the value's gradient by 4 bytes per element. In
  float16 and bfloat16 it writes past the end of the gradient, and corrupts other tensors or crashes. In
  float64 and complex dtypes it overwrites its own results.
- If ``item`` is a mask and the value has one element, the value's gradient is 0.
- If the value has more dims than ``x[item]``, of size 1, ``index_elementwise_put_with_tensor`` corrupts
  memory.

The plugin for cards does not register these kernels, so a card falls back to them. ``index_put_`` and its
gradient are correct on the CPU, and the plugin registers both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import paddle

CORRECT_ELEMENT_SIZE = 4  # bytes
ARRAYS = (bool, np.bool_, list, tuple, range, np.ndarray)


def corrected(upstream: Callable) -> Callable:
    """``Tensor.__setitem__`` that calls ``upstream`` wherever its result and its gradient are correct.

    DistTensors are left to ``upstream``.
    """

    @functools.wraps(upstream)
    def __setitem__(tensor, item, value):
        items = list(item) if isinstance(item, tuple) else [item]
        is_wrong = _gradient_is_wrong(tensor, value)
        if not (is_wrong or _may_have_more_dims(tensor, value)) or not any(map(_selects_elements, items)):
            return upstream(tensor, item, value)
        indices, dims = _index_tensors(tensor, items)
        if not is_wrong and value.ndim <= dims:
            return upstream(tensor, item, value)
        value = value.astype(tensor.dtype)
        while value.ndim > dims and value.shape[0] == 1:  # Paddle's assignments accept such values
            value = value.squeeze(0)
        paddle.index_put_(tensor, indices, value)
        return None

    return __setitem__


def _gradient_is_wrong(tensor: paddle.Tensor, value: object) -> bool:
    return (
        isinstance(value, paddle.Tensor)
        and not value.stop_gradient
        and paddle.is_grad_enabled()
        and (tensor.is_floating_point() or tensor.is_complex())
        and (tensor.element_size() != CORRECT_ELEMENT_SIZE or value.size == 1)
        and not (tensor.is_dist() or value.is_dist())
    )


def _may_have_more_dims(tensor: paddle.Tensor, value: object) -> bool:
    """Whether the value may have more dims than what it is assigned to."""
    return (
        isinstance(value, paddle.Tensor)
        and value.ndim > 1
        and value.shape[0] == 1
        and not (tensor.is_dist() or value.is_dist())
    )


def _selects_elements(item: object) -> bool:
    """Whether the item is a mask or a list of indices, rather than a number, a slice, ``...`` or None."""
    if isinstance(item, paddle.Tensor):
        return item.ndim > 0 or item.dtype == paddle.bool
    return isinstance(item, ARRAYS)


def _index_tensors(tensor: paddle.Tensor, items: Sequence) -> tuple[tuple[paddle.Tensor, ...], int]:
    """A mask, or indices for each leading dim, that select ``tensor[items]``; and the number of its dims.

    Leading masks and indices are used as they are. Other items are applied to positions: an int64 tensor with
    the shape of the leading dims.
    """
    items = [_on(tensor.place, item) if isinstance(item, ARRAYS) else item for item in items]
    while items and (items[-1] is Ellipsis or _is_whole_dim(items[-1])):
        items.pop()
    if all(isinstance(item, paddle.Tensor) and item.ndim for item in items):
        masks = sum(item.dtype == paddle.bool for item in items)
        if masks == 1 == len(items):
            return tuple(items), 1 + tensor.ndim - items[0].ndim
        if not masks:
            dims = max(item.ndim for item in items)
            return tuple(item.astype("int64") for item in items), dims + tensor.ndim - len(items)
    dims = [_dims(item) for item in items]
    leading = tensor.shape if None in dims else tensor.shape[: sum(dims)]
    positions = _on(tensor.place, np.arange(math.prod(leading)).reshape(leading))[tuple(items)]
    selected = positions.ndim + tensor.ndim - len(leading)
    indices = []
    for size in reversed(leading):
        indices.insert(0, positions % size)
        positions = positions // size
    return tuple(indices), selected


def _on(place, array) -> paddle.Tensor:
    return paddle.to_tensor(np.asarray(array), place=place)


def _is_whole_dim(item: object) -> bool:
    return isinstance(item, slice) and item.start is item.stop is item.step is None


def _dims(item: object) -> int | None:
    """The number of the tensor's dims that the item indexes; None for ``...``, which takes the rest."""
    if item is Ellipsis:
        return None
    if isinstance(item, paddle.Tensor) and item.dtype == paddle.bool:
        return item.ndim
    return 0 if item is None else 1
