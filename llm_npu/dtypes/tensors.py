"""float64 tensors that exist before anything runs: of a model, an optimizer or a batch."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np
import paddle
from paddle import nn

from . import sources
from .report import WIDE, Finding


def dtype_of(value: object) -> str | None:
    """The name of a tensor's or an array's dtype, "float64"; None for other values."""
    if isinstance(value, paddle.Tensor):
        return _name(value.dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.name
    return None


@functools.cache
def _name(dtype: paddle.dtype) -> str:
    return str(dtype).rpartition(".")[2]


def found(kind: str, name: str, value: object, layer: str = "", source=None) -> Iterator[Finding]:
    """A finding, if ``value`` is a float64 tensor."""
    dtype = dtype_of(value)
    if dtype in WIDE:
        yield Finding(kind, name, dtype, "aicpu", tuple(value.shape), layer, source)


def of_model(model: nn.Layer) -> Iterator[Finding]:
    """Parameters, buffers and other attributes of the layers that are tensors or arrays."""
    for path, layer in model.named_sublayers(include_self=True):
        kinds = (("parameter", layer._parameters), ("buffer", layer._buffers), ("constant", vars(layer)))
        for kind, values in kinds:
            for name, value in list(values.items()):
                if kind == "constant" and isinstance(value, np.generic):
                    continue  # a scalar: Paddle's operators take it as a Python number
                if dtype_of(value) in WIDE:
                    source = sources.of_attribute(path, layer, name, model)
                    yield from found(kind, f"{path}.{name}".lstrip("."), value, path, source)


def of_default_dtype() -> Iterator[Finding]:
    """The default dtype, which tensors made of Python floats have."""
    default = paddle.get_default_dtype()
    if default in WIDE:
        yield Finding("default dtype", "paddle.get_default_dtype()", default, "aicpu")


def of_optimizer(optimizer) -> Iterator[Finding]:
    """The optimizer's states, master weights, learning rates, and the schedule's attributes."""
    inner = optimizer
    while hasattr(inner, "_inner_opt"):  # a wrapper for several processes
        inner = inner._inner_opt
    for state, values in inner._accumulators.items():
        for parameter, value in values.items():
            if dtype_of(value) in WIDE:
                source = sources.mention(type(inner), state)
                yield from found("optimizer state", f"{state} of {parameter}", value, source=source)
    for parameter, value in inner._master_weights.items():
        yield from found("master weight", parameter, value)
    for value in inner._learning_rate_map.values():
        yield from found("learning rate", "the optimizer's tensor", value)
    schedule = inner._learning_rate
    if isinstance(schedule, paddle.optimizer.lr.LRScheduler):
        for name, value in vars(schedule).items():
            if not isinstance(value, np.generic):
                source = sources.assignment(type(schedule), name)
                yield from found("learning rate", f"{type(schedule).__name__}.{name}", value, source=source)
    else:
        yield from found("learning rate", "learning_rate", schedule)


def of_scaler(scaler) -> Iterator[Finding]:
    """The loss scale of a GradScaler."""
    for name, value in vars(scaler).items():
        yield from found("loss scaling", f"{type(scaler).__name__}.{name.lstrip('_')}", value)


def of_batch(batch: object, name: str = "sample") -> Iterator[Finding]:
    """Tensors and arrays in nested dictionaries, lists and tuples."""
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from of_batch(value, f"{name}[{key!r}]")
    elif isinstance(batch, (list, tuple)):
        for position, value in enumerate(batch):
            yield from of_batch(value, f"{name}[{position}]")
    else:
        yield from found("input", name, batch)
