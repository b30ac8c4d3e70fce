"""The trainer, callbacks and schedules of the installed library, under common names.

PaddleFormers' trainer is derived from PaddleNLP's, with the same loop, events and methods.
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
        """PaddleFormers' trainer with fixes for several processes."""

        def create_optimizer(self, lr_scheduler=None):
            """Upstream identifies norms by name, but a pipeline's last norm has a number instead."""
            optimizer = super().create_optimizer(lr_scheduler)
            norms = (layer for layer in self.model.sublayers() if isinstance(layer, LayerNorm | RMSNorm))
            excluded = {weight.name for norm in norms for weight in norm.parameters()}
            decays = optimizer._apply_decay_param_fun
            optimizer._apply_decay_param_fun = lambda name: name not in excluded and decays(name)
            return optimizer

        def _wrap_distributed_optimizer(self, optimizer):
            """Upstream logs the gradient norm from an attribute that exists only in mixed precision."""
            return fleet.distributed_optimizer(optimizer)

        def training_step(self, model, inputs, *args, **kwargs):
            """The upstream method scales the loss for fp16, but not the losses of ERNIE's routers.

            The router layers set the gradient of their loss themselves: 1 / num_acc_steps, or 1 with the
            default ``enable_delay_scale_loss``.
            """
            config = self.model.config
            if self.do_grad_scaling and hasattr(config, "num_acc_steps"):
                config.enable_delay_scale_loss = False
                config.num_acc_steps = 1 / float(self.scaler._scale)
            return super().training_step(model, inputs, *args, **kwargs)

        def prediction_pipeline_step(self, model, inputs, *args, **kwargs):
            """The upstream method returns a loss only for the last of ``gradient_accumulation_steps`` calls.

            ``inputs`` has the rows of all calls.
            """
            parts = self.args.gradient_accumulation_steps
            ids, labels = (inputs[name].split(parts) for name in ("input_ids", "labels"))
            for micro_batch in zip(ids, labels, strict=True):
                batch = dict(zip(("input_ids", "labels"), micro_batch, strict=True))
                outputs = super().prediction_pipeline_step(model, batch, *args, **kwargs)
            return outputs


def optimizer_wrappers(optimizer) -> Iterator:
    """The parallelism wrappers around an optimizer, outermost first; the last item is the optimizer."""
    inside = None
    while optimizer is not None and optimizer is not inside:
        yield optimizer
        inside = optimizer
        optimizer = vars(inside).get("_inner_opt", vars(inside).get("_optim"))  # stage 3 uses _optim for this


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
