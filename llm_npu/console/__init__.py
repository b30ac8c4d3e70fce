"""What a run says before it starts and after it ends, and why an operator was not fused."""
