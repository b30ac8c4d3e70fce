"""The trainer of the installed library and what belongs to it, under one set of names.

PaddleFormers' trainer descends from PaddleNLP's: the same loop, events and methods.
"""

from llm_npu.models import library

if library.installed() == library.PADDLENLP:
    from paddlenlp.trainer import (
        PrinterCallback,
        ProgressCallback,
        Trainer,
        TrainerCallback,
        TrainerState,
        set_seed,
    )
    from paddlenlp.trainer.trainer_utils import EvalLoopOutput
    from paddlenlp.transformers import CosineAnnealingWithWarmupDecay, LinearAnnealingWithWarmupDecay
    from paddlenlp.utils.batch_sampler import DistributedBatchSampler
else:
    from paddleformers.trainer import (
        PrinterCallback,
        ProgressCallback,
        Trainer,
        TrainerCallback,
        TrainerState,
        set_seed,
    )
    from paddleformers.trainer.trainer_utils import EvalLoopOutput
    from paddleformers.transformers.optimization import (
        CosineAnnealingWithWarmupDecay,
        LinearAnnealingWithWarmupDecay,
    )
    from paddleformers.utils.batch_sampler import DistributedBatchSampler

__all__ = [
    "CosineAnnealingWithWarmupDecay",
    "DistributedBatchSampler",
    "EvalLoopOutput",
    "LinearAnnealingWithWarmupDecay",
    "PrinterCallback",
    "ProgressCallback",
    "Trainer",
    "TrainerCallback",
    "TrainerState",
    "set_seed",
]
