"""Advice for out-of-memory errors, specific to the phase of the run.

    with advising(lambda: WEIGHTS):
        ...

A MemoryError raised inside is re-raised with the advice (``llm_npu.core.errors.out_of_memory``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llm_npu.core import errors

WEIGHTS = (
    "Weights and optimizer states do not fit: shard them over more devices "
    "(--sharding or --tensor_parallel_degree), add --offload_optimizer, train with --finetuning_type lora, "
    "or use a smaller model."
)


@contextmanager
def advising(advice: Callable[[], str]) -> Iterator[None]:
    """Add ``advice()`` to a MemoryError raised inside."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"{errors.out_of_memory(error)} {advice()}") from error


def of_step(arguments) -> str:
    """How to reduce the memory of a training step."""
    batch, flags = arguments.per_device_train_batch_size, ["--max_seq_length"]
    if batch > 1:
        flags.insert(0, f"--per_device_train_batch_size {batch} (and raise --gradient_accumulation_steps)")
    return f"Lower {' or '.join(flags)}{'' if arguments.recompute else ', or add --recompute'}."


def of_evaluation(arguments) -> str:
    """How to reduce the memory of an evaluation."""
    batch, flags = arguments.per_device_eval_batch_size, ["--max_seq_length"]
    if batch > 1:
        flags.insert(0, f"--per_device_eval_batch_size {batch}")
    return f"The evaluation does not fit: lower {' or '.join(flags)}, or set --do_eval false."


def of_weights(arguments) -> str:
    """Advice for memory that does not depend on the batch."""
    return WEIGHTS
