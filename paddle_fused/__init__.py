"""Fused operators for Ascend NPUs and for the host, and the virtual NPU that stands in for a card.

Importing this package imports no framework: ``paddle_fused.virtual_npu`` has to act before paddle is
imported.
"""
