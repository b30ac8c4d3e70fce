"""Models with fused operators against the same without.

For tests/models/test_fused_models*.py (PaddleNLP) and tests/formers/fused (PaddleFormers).

families.py    PaddleNLP's tiny models; their operators come from the families' records
formers.py     the same of PaddleFormers
ernie_experts.py  ERNIE's MoE layers as a plain loop over the experts
weights.py     the weights of both
experts.py     PaddleNLP's MoE layers as a plain loop: what the unfused models compute there
comparison.py  outputs and gradients, float64 truth, the rule of tests/shared/precision.py
training.py    training steps, and how far two runs may diverge
hugging_face.py  a program: the logits of checkpoints in transformers
table.py       docs/fusing.md's table of models and operators
"""
