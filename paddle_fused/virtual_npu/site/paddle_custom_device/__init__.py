"""What paddle-custom-npu installs under this name, supplied for the virtual NPU: an emulation, not a card.

It stands on ``sys.path`` only while the virtual NPU is active, and depends on nothing but Paddle and the
environment that ``paddle_fused.virtual_npu`` sets, so that it works in every child process.
"""

from . import npu

__all__ = ["npu"]


def __getattr__(name: str):
    raise AttributeError(
        f"paddle_custom_device has no {name!r}: the virtual NPU supplies it with `npu` and nothing else."
    )
