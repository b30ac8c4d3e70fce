"""Dry runs: the training program without arithmetic, with every call recorded.

features    features for the training script: journal marks, and a run without results
journal     reads a journal (VIRTUAL_NPU_JOURNAL); imports no framework
"""
