"""Programs with float64 tensors in them, for the tests of llm_npu.dtypes."""
