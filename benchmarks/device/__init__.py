"""What the virtual NPU, and watching on it, add to operators and to a training step; in one process."""
