"""Where tensors are, for backends that have to know: in dygraph and while a program is captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import paddle


def device_of(tensor) -> str:
    """``cpu``, ``npu``, ``gpu``, ...: the kind of place of a tensor.

    While a program is captured its values have no place yet: then it is the device that is set.
    """
    return located(tensor).partition(":")[0]


def located(tensor) -> str:
    """``cpu``, ``npu:0``, ...: the device of a tensor; while a program is captured the one that is set."""
    return paddle.device.get_device() if is_captured(tensor) else _name_of(tensor.place)


@contextmanager
def default_device_of(tensor) -> Iterator[None]:
    """Inside, new tensors are made on the device of ``tensor``, whatever device is set.

    A program that is being captured makes them where it will run.
    """
    before = paddle.device.get_device()
    device = before if is_captured(tensor) else _name_of(tensor.place)
    if device == before:
        yield
        return
    paddle.device.set_device(device)
    try:
        yield
    finally:
        paddle.device.set_device(before)


def _name_of(place) -> str:
    """As ``paddle.device.set_device`` takes it; the place's text if it takes no such place."""
    if place.is_cpu_place():
        return "cpu"
    if place.is_custom_place():
        return f"{place.custom_device_type()}:{place.custom_device_id()}"
    return f"gpu:{place.gpu_device_id()}" if place.is_gpu_place() else str(place)


def is_captured(tensor) -> bool:
    """Whether the tensor is a value of a program that is being captured, without data."""
    return not isinstance(tensor, paddle.Tensor)


def elsewhere(expected: tuple[str, ...], tensors) -> str | None:
    """The reason to refuse tensors that are not all on one device of the ``expected`` kinds, or None.

    None among the tensors is skipped.
    """
    devices = {located(tensor) for tensor in tensors if tensor is not None}
    accepted = " or ".join(expected)
    if len(devices) > 1:
        return f"the tensors are on {' and '.join(sorted(devices))}, not all on one of the {accepted} devices"
    (kind,) = (device.partition(":")[0] for device in devices)
    return None if kind in expected else f"the tensors are on {kind}, not on {accepted}"
