"""Profiles of training: capturing them, and ``python -m llm_npu.profiling report``, which explains them."""
