"""Dry runs: the training program without arithmetic, with every call recorded.

features    features for the training script: journal marks, and a run without results
transfers   records exchanges and rings of ranks as collectives
journal     reads a journal (VIRTUAL_NPU_JOURNAL); imports no framework, like the following
all_ranks   runs one rank of each role, and reports all ranks
calls       reads a rank's collectives from its journal
world       all ranks, their representatives and groups
matching    matches the collectives of all ranks
deadlock    finds calls that wait for each other
roles       memory and traffic of each role
"""

FOLDER = "dry_run"  # in --output_dir
