"""What Paddle's profiler records on the virtual NPU, beyond what Paddle can ask for."""

from __future__ import annotations

from .activation import loaded_plugin


def record_call_sites(on: bool) -> None:
    """Whether profiles say at which line of the program each kernel was called; off at first.

    Each kernel of a profile costs a few microseconds more with it. RuntimeError if the plugin is not loaded.
    """
    plugin = loaded_plugin()
    if plugin is None:
        raise RuntimeError(
            "Call sites are recorded by the virtual NPU, which is not loaded. Call "
            "paddle_fused.virtual_npu.activate() and then import paddle."
        )
    plugin.virtual_npu_record_call_sites.restype = None
    plugin.virtual_npu_record_call_sites(int(on))
