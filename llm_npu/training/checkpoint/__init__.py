"""Checkpoints that are complete or absent: ``<output_dir>/checkpoint-<step>/``, of one rank or of many.

    training       the methods of PaddleNLP's Trainer that save and load; export of models
    saving         writes a checkpoint, synchronously or in a background thread
    write_plan     which rank writes which part; whole tensors from files of parts
    tensors        this rank's parameters and optimizer state, as parts of whole tensors
    states         the JSON files: schedule, loss scale, random numbers, settings of the run
    random_state   the random number generators
    folder         the folder: complete or not, verified, rotated
    disks          whether the machines share the folder
    gathering      chooses and gathers a checkpoint whose files are on several disks

``llm_npu.core.tensor_file`` writes the safetensors files, ``llm_npu.core.atomic`` publishes folders
atomically, and ``llm_npu.models.layout`` has the places of parts in whole tensors. docs/checkpoints.md
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
