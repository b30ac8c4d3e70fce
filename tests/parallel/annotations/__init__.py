"""Programs that tests run on several ranks of the virtual NPU, for auto-parallel."""
