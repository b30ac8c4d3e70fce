"""Profiles as they are written: CANN's tables and timelines, and the virtual NPU's traces."""
