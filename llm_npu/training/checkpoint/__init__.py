"""Checkpoints that are whole or not there: ``<output_dir>/checkpoint-<step>/``, of one process or of many.

    folder         the folder: complete or not, verified, rotated
    tensor_file    safetensors files that many processes write, each its part, in place
    tensors        what a process holds: parameters and optimizer state as parts of whole tensors
    plan           who writes which part of them
    saving         a checkpoint on its way to the disk, in the foreground or behind the training
    random_state   the random number generators
    training       the methods of PaddleNLP's Trainer that save and load

Where the parts stand in the whole tensors is in ``llm_npu.models.paddlenlp.layout``. docs/checkpoints.md
describes the files.
"""

from .folder import (
    MARK,
    NEWEST,
    clear,
    complete,
    digests,
    marked_step,
    path_of,
    prune,
    step_of,
    to_resume,
    verify,
)

__all__ = [
    "MARK",
    "NEWEST",
    "clear",
    "complete",
    "digests",
    "marked_step",
    "path_of",
    "prune",
    "step_of",
    "to_resume",
    "verify",
]
