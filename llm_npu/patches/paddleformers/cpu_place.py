"""PaddleFormers' trainer on the CPU place."""

from __future__ import annotations

import functools

import paddle


@functools.cache
def allow_synchronize() -> None:
    """PaddleFormers 1.1 and 1.2: gradient accumulation on the CPU place fails ("device should be gpu, xpu").

    The trainer calls ``paddle.device.synchronize``, which refuses the CPU place. It has nothing to wait for.
    """
    upstream = paddle.device.synchronize

    @functools.wraps(upstream)
    def synchronize(device=None):
        if device is not None or paddle.device.get_device() != "cpu":
            upstream(device)

    paddle.device.synchronize = synchronize
