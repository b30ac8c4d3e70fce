"""The fused operators: limits, cases and goals, verifying and timing, and the processes that run them."""
