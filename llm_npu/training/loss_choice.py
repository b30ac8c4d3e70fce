"""Decides for a run whether the loss is computed without logits (``--use_fused_linear_cross_entropy``)."""

from __future__ import annotations

import os

from llm_npu.config import RunConfig
from llm_npu.core.console import mib
from llm_npu.models import degrees, logits

LIMIT = "VIRTUAL_NPU_MEMORY_GB"
SWITCH = "use_fused_linear_cross_entropy"


def decide(run: RunConfig, config, on_virtual_npu: bool) -> str:
    """Set the switch of ``run`` where it is not given; the reason if it is off and was not switched off."""
    given = run.fused.use_fused_linear_cross_entropy
    if run.data.stage == "dpo":
        chosen, reason = False, "the loss on preference pairs reads the logits"
    elif run.training.enable_auto_parallel:
        chosen, reason = True, ""
    elif given is not None:
        chosen, reason = given, ""
    else:
        limit = os.environ.get(LIMIT) if on_virtual_npu else None
        chosen, reason = _by_size(run, config, int(float(limit) * 2**30) if limit else logits.CARD)
    run.fused.use_fused_linear_cross_entropy = chosen
    return reason


def _by_size(run: RunConfig, config, memory: int) -> tuple[bool, str]:
    tokens = run.training.per_device_train_batch_size * run.data.max_seq_length
    parts = degrees.tensor_parallel(config)
    vocabulary = config.vocab_size // (1 if config.vocab_size % parts else parts)
    if logits.are_large(tokens, vocabulary, memory):
        return True, ""
    return False, (
        f"logits of {mib(logits.size(tokens, vocabulary))} take less than {logits.RULE} of the device's "
        f"{mib(memory)}"
    )
