"""Dry runs: the training program without its arithmetic, recorded call by call.

features    what the training script attaches to a run: marks in the journal, and a run without results
journal     reads a journal (VIRTUAL_NPU_JOURNAL); imports no framework
"""
