"""Patches for Paddle's descriptions of devices."""

from __future__ import annotations

import functools

import paddle


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
