"""Advice for memory that is exhausted: only what helps in that phase of this run.

    with advising(lambda: WEIGHTS):
        ...

turns a MemoryError into one whose sentence ends with the advice (``llm_npu.core.errors.out_of_memory``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llm_npu.core import errors

WEIGHTS = (
    "The weights and what the optimizer keeps for them do not fit: divide them among more devices "
    "(--sharding or --tensor_parallel_degree), train with --finetuning_type lora, or take a smaller model."
)


@contextmanager
def advising(advice: Callable[[], str]) -> Iterator[None]:
    """Add ``advice()`` to a MemoryError raised inside."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"{errors.out_of_memory(error)} {advice()}") from error


def of_step(arguments) -> str:
    """What lowers the memory of a training step with the trainer's ``arguments``."""
    batch, ways = arguments.per_device_train_batch_size, ["--max_seq_length"]
    if batch > 1:
        ways.insert(0, f"--per_device_train_batch_size {batch} (and raise --gradient_accumulation_steps)")
    return f"Lower {' or '.join(ways)}{'' if arguments.recompute else ', or add --recompute'}."


def of_evaluation(arguments) -> str:
    """As `of_step`, for an evaluation."""
    batch, ways = arguments.per_device_eval_batch_size, ["--max_seq_length"]
    if batch > 1:
        ways.insert(0, f"--per_device_eval_batch_size {batch}")
    return f"The evaluation does not fit: lower {' or '.join(ways)}, or set --do_eval false."


def of_weights(arguments) -> str:
    """Advice for what does not depend on the batch."""
    return WEIGHTS
