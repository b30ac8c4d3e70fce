"""Programs with doubles in them, for the tests of llm_npu.dtypes."""
