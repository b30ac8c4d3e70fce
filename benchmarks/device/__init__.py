"""The overhead of the virtual NPU, and of watching on it, for operators and a training step; in one
process."""
