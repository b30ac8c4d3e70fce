"""The device of a tensor, in dygraph and in captured programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import paddle


def device_of(tensor) -> str:
    """The device type of a tensor: ``cpu``, ``npu``, ``gpu``, ...

    For a value of a captured program, which has no place yet, it is the current device.
    """
    return located(tensor).partition(":")[0]


def located(tensor) -> str:
    """The device of a tensor: ``cpu``, ``npu:0``, ...; in a captured program the current device."""
    return paddle.device.get_device() if is_captured(tensor) else _name_of(tensor.place)


@contextmanager
def default_device_of(tensor) -> Iterator[None]:
    """Makes the device of ``tensor`` the current device for a block. No effect in a captured program."""
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
    """The place as accepted by ``paddle.device.set_device``, or ``str(place)`` for other places."""
    if place.is_cpu_place():
        return "cpu"
    if place.is_custom_place():
        return f"{place.custom_device_type()}:{place.custom_device_id()}"
    return f"gpu:{place.gpu_device_id()}" if place.is_gpu_place() else str(place)


def is_captured(tensor) -> bool:
    """Whether the tensor is a value of a program under capture, which has no data."""
    return not isinstance(tensor, paddle.Tensor)


def elsewhere(expected: tuple[str, ...], tensors) -> str | None:
    """Why the tensors are not all on one device of the ``expected`` types, or None if they are.

    Missing tensors (None) are skipped.
    """
    devices = {located(tensor) for tensor in tensors if tensor is not None}
    accepted = " or ".join(expected)
    if len(devices) > 1:
        return f"the tensors are on {' and '.join(sorted(devices))}, not all on one of the {accepted} devices"
    (kind,) = (device.partition(":")[0] for device in devices)
    return None if kind in expected else f"the tensors are on {kind}, not on {accepted}"
