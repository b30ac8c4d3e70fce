"""The virtual NPU's replacement for the package of paddle-custom-npu. It is an emulation, not a card.

It is on ``sys.path`` only while the virtual NPU is active. It depends only on Paddle and the environment set
by ``virtual_npu``, so it works in every child process.
"""

from . import npu

__all__ = ["npu"]


def __getattr__(name: str):
    raise AttributeError(f"paddle_custom_device has no {name!r}: the virtual NPU provides only `npu`.")
