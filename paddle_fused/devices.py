"""Where tensors are, for backends that have to know: in dygraph and while a program is captured."""

from __future__ import annotations

import paddle


def device_of(tensor) -> str:
    """``cpu``, ``npu``, ``gpu``, ...: the kind of place of a tensor.

    While a program is captured its values have no place yet: then it is the device that is set.
    """
    if is_captured(tensor):
        return paddle.device.get_device().partition(":")[0]
    place = tensor.place
    if place.is_custom_place():
        return place.custom_device_type()
    return "cpu" if place.is_cpu_place() else "gpu" if place.is_gpu_place() else str(place)


def is_captured(tensor) -> bool:
    """Whether the tensor is a value of a program that is being captured, without data."""
    return not isinstance(tensor, paddle.Tensor)


def elsewhere(expected: tuple[str, ...], tensors) -> str | None:
    """The reason to refuse tensors that are not all on one device of the ``expected`` kinds, or None.

    None among the tensors is skipped.
    """
    devices = {device_of(tensor) for tensor in tensors if tensor is not None}
    if len(devices) == 1 and devices <= set(expected):
        return None
    return f"the tensors are on {' and '.join(sorted(devices))}, not on {' or '.join(expected)}"
