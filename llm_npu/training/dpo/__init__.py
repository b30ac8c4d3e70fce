"""Direct preference optimisation (DPO, Rafailov et al., arXiv 2305.18290) of PaddleFormers' models.

The reference is the model that the training starts from. Its log-probabilities of all answers are computed
before the first step and cached (``reference``), so there is only one model in memory (``trainer``).
"""
