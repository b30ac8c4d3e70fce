"""The rings of static programs: their collectives need a context that Paddle's wheel does not create."""

from __future__ import annotations

from .activation import loaded_plugin


def prepare_ring(ring: str, device: int) -> None:
    """Makes the collectives of ``ring`` run in the compute stream of ``npu:device``.

    Raises ValueError if the communicator does not exist, or if the virtual NPU is not loaded.
    """
    plugin = loaded_plugin()
    if plugin is None:
        raise ValueError("prepare_ring: the virtual NPU is not loaded; activate it before importing paddle.")
    if not plugin.virtual_npu_prepare_ring(ring.encode(), device):
        raise ValueError(f"prepare_ring: there is no communicator for the ring {ring!r}; make it first.")
