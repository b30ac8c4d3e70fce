"""Atomic checkpoints, ``<output_dir>/checkpoint-<step>/``, of one or many ranks.

    training       saving and loading for PaddleNLP's Trainer; model export
    saving         writes a checkpoint, synchronously or in a background thread
    write_plan     assigns parts to ranks; assembles whole tensors from part files
    tensors        this rank's parameters and optimizer state, as parts of whole tensors
    states         the JSON files: schedule, loss scale, random numbers, settings of the run
    random_state   the random number generators
    folder         checkpoint folders: completion, verification, rotation
    disks          whether the machines share the folder
    gathering      selects and gathers a checkpoint with files on several disks

``llm_npu.core.tensor_file`` writes the safetensors files, ``llm_npu.core.atomic`` publishes folders
atomically, and ``llm_npu.models.layout`` maps parts to positions in whole tensors. docs/checkpoints.md
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
