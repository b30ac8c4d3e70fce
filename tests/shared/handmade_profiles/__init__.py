"""Profiles made by hand, for the tests of llm_npu.profiling.report."""
