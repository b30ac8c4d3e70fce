"""Checkpoints that are complete or absent: ``<output_dir>/checkpoint-<step>/``, of one rank or of many.

    folder         the folder: complete or not, verified, rotated
    tensors        this rank's parameters and optimizer state, as parts of whole tensors
    write_plan     which rank writes which part
    saving         writes a checkpoint, synchronously or in a background thread
    states         schedule, loss scale and random numbers, as JSON
    random_state   the random number generators
    run_record     run.json, the settings of the run
    merged         the merged model of LoRA
    training       the methods of PaddleNLP's Trainer that save and load

``llm_npu.core.tensor_file`` writes the safetensors files, ``llm_npu.core.atomic`` makes folders appear whole,
and ``llm_npu.models.layout`` knows where parts lie in whole tensors. docs/checkpoints.md describes
the files.
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
