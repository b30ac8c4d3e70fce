"""Readers of profile files: CANN's tables and timelines, and the virtual NPU's traces."""
