"""PaddleNLP's models with fused operators against the same without, for tests/models/test_fused_models*.py.

families.py    the tiny models; their operators come from the families' records
experts.py     mixtures of experts as a plain loop: what the unfused models compute there
comparison.py  outputs and gradients, float64 truth, the rule of tests/shared/precision.py
training.py    training steps, and how far two runs may diverge
table.py       docs/fusing.md's table of models and operators
"""
