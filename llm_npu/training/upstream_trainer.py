"""The trainer of the installed library and its callbacks and schedules, under one set of names.

PaddleFormers' trainer descends from PaddleNLP's: the same loop, events and methods.
"""

from collections.abc import Iterator

from llm_npu.models import library

if library.installed() == library.PADDLENLP:
    from paddlenlp.trainer import (
        PrinterCallback,
        ProgressCallback,
        Trainer,
        TrainerCallback,
        TrainerState,
    )
    from paddlenlp.trainer.trainer_utils import EvalLoopOutput
    from paddlenlp.transformers import CosineAnnealingWithWarmupDecay, LinearAnnealingWithWarmupDecay
    from paddlenlp.utils.batch_sampler import DistributedBatchSampler
else:
    from paddle.distributed import fleet
    from paddleformers.nn.norm import LayerNorm, RMSNorm
    from paddleformers.trainer import (
        PrinterCallback,
        ProgressCallback,
        TrainerCallback,
        TrainerState,
    )
    from paddleformers.trainer import Trainer as Upstream
    from paddleformers.trainer.trainer_utils import EvalLoopOutput
    from paddleformers.transformers.optimization import (
        CosineAnnealingWithWarmupDecay,
        LinearAnnealingWithWarmupDecay,
    )
    from paddleformers.utils.batch_sampler import DistributedBatchSampler

    class Trainer(Upstream):
        """PaddleFormers' trainer, corrected where it runs on several processes."""

        def create_optimizer(self, lr_scheduler=None):
            """The upstream method knows norms by their names, and the last one of a pipeline has a number."""
            optimizer = super().create_optimizer(lr_scheduler)
            norms = (layer for layer in self.model.sublayers() if isinstance(layer, LayerNorm | RMSNorm))
            excluded = {weight.name for norm in norms for weight in norm.parameters()}
            decays = optimizer._apply_decay_param_fun
            optimizer._apply_decay_param_fun = lambda name: name not in excluded and decays(name)
            return optimizer

        def _wrap_distributed_optimizer(self, optimizer):
            """The upstream method logs the gradient norm by an attribute that only mixed precision's has."""
            return fleet.distributed_optimizer(optimizer)

        def training_step(self, model, inputs, *args, **kwargs):
            """The upstream method scales the loss for fp16, and not those of ERNIE's routers.

            Their layers make up the gradient of a router's loss: 1 / num_acc_steps, or 1 with the default
            ``enable_delay_scale_loss``.
            """
            config = self.model.config
            if self.do_grad_scaling and hasattr(config, "num_acc_steps"):
                config.enable_delay_scale_loss = False
                config.num_acc_steps = 1 / float(self.scaler._scale)
            return super().training_step(model, inputs, *args, **kwargs)

        def prediction_pipeline_step(self, model, inputs, *args, **kwargs):
            """The upstream method returns a loss for the last of ``gradient_accumulation_steps`` calls only.

            ``inputs`` has the rows of all of them.
            """
            parts = self.args.gradient_accumulation_steps
            ids, labels = (inputs[name].split(parts) for name in ("input_ids", "labels"))
            for micro_batch in zip(ids, labels, strict=True):
                batch = dict(zip(("input_ids", "labels"), micro_batch, strict=True))
                outputs = super().prediction_pipeline_step(model, batch, *args, **kwargs)
            return outputs


def optimizer_wrappers(optimizer) -> Iterator:
    """The wrappers of parallelism around an optimizer, outermost first; the last is the optimizer itself."""
    inside = None
    while optimizer is not None and optimizer is not inside:
        yield optimizer
        inside = optimizer
        optimizer = vars(inside).get("_inner_opt", vars(inside).get("_optim"))  # stage 3's is its own _optim


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
    "optimizer_wrappers",
]
