"""Hooks of a job's processes: the trainer prints the norm of each step's gradients.

The variable WATCHED_MODEL is "fused", or "unfused" to remove the fused operators before the first step, or
the seed of an unfused model with other roundings.
"""

import os

import numpy as np
from fused_models.rounding import round_otherwise

from llm_npu.surgery import remove_fused_kernels

MODEL = "WATCHED_MODEL"


def before_library() -> None:
    """Nothing to prepare."""


def after_library() -> None:
    from paddleformers.trainer.trainer_callback import CallbackHandler

    train_begin, optimizer_begin = CallbackHandler.on_train_begin, CallbackHandler.on_optimizer_begin

    def on_train_begin(self, *arguments):
        change(self.model, os.environ[MODEL])
        return train_begin(self, *arguments)

    def on_optimizer_begin(self, *arguments, **named):
        print(f"gradient norm: {norm(self.model)}", flush=True)
        return optimizer_begin(self, *arguments, **named)

    CallbackHandler.on_train_begin, CallbackHandler.on_optimizer_begin = on_train_begin, on_optimizer_begin


def change(model, how: str) -> None:
    if how != "fused":
        remove_fused_kernels(model)
    if how.isdigit():
        round_otherwise(model, int(how))


def norm(model) -> float:
    """Of the gradients before clipping; master gradients with ``main_grad``."""
    gradients = (getattr(p, "main_grad", None) if p.grad is None else p.grad for p in model.parameters())
    arrays = (gradient.astype("float32").numpy() for gradient in gradients if gradient is not None)
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays)))
