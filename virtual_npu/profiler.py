"""Options of the virtual NPU for Paddle's profiler that Paddle has no interface for."""

from __future__ import annotations

from .activation import loaded_plugin


def record_call_sites(on: bool) -> None:
    """Whether profiles record the line of the program that called each kernel. Off by default.

    Adds a few microseconds to each profiled kernel. Raises RuntimeError if the plugin is not loaded.
    """
    plugin = loaded_plugin()
    if plugin is None:
        raise RuntimeError(
            "Call sites are recorded by the virtual NPU, which is not loaded. Call "
            "virtual_npu.activate() and then import paddle."
        )
    plugin.virtual_npu_record_call_sites.restype = None
    plugin.virtual_npu_record_call_sites(int(on))
