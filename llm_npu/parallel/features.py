"""The parallel modes of a run as features, and the trainer of pipelines.

Pipelines of PaddleNLP and PaddleFormers are patched to count samples and losses like a single process.
"""

from __future__ import annotations

from collections.abc import Callable

import paddle

from llm_npu.config import schedules
from llm_npu.core.console import say
from llm_npu.parallel import overlap, split_backward
from llm_npu.parallel.trainer import ParallelTrainer, for_one_device
from llm_npu.training.run import Feature, Run
from llm_npu.training.trainer import PretrainTrainer


class PipelineTrainer(PretrainTrainer):
    """The trainer of a model with stages on different processes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        mean_over_rows(self.model)

    def _wrap_model(self, model, training=True):
        wrapped = super()._wrap_model(model, training)
        if training and wrapped is not model:
            wrapped._prepare_pipeline_inputs_func = inputs_of_stages
        return wrapped

    def evaluation_loop(self, *args, **kwargs):
        self.model_wrapped.eval()  # the wrapper, like its layers, behaves differently in evaluation
        result = super().evaluation_loop(*args, **kwargs)
        self.model_wrapped.train()
        return result

    def held_out_loss(self, inputs) -> float:
        weight, rows = inputs["loss_weight"], len(inputs["input_ids"])
        mean = self.prediction_step(self.model_wrapped, inputs, prediction_loss_only=True)[0]
        return float(mean) * rows / weight if weight else 0.0  # rows without labels count in the mean


def mean_over_rows(model) -> None:
    """Make the loss of a micro batch the mean over its rows, with 0 for a row without labels.

    The loss of a batch, the mean over its micro batches, is then the sum over its rows divided by their
    number, even if the last rows are padding. All rows with labels must have the same number of labels.
    """
    model._loss_fn = [_by_rows(criterion) for criterion in model._loss_fn]


def _by_rows(criterion: Callable) -> Callable:
    def loss(logits, labels):
        counted = (labels != -100).any(axis=-1)
        # Without any labels, PaddleFormers' criterion returns NaN, and the gradient would be NaN times 0.
        some = paddle.where(counted.any(), labels, paddle.zeros_like(labels))
        return criterion(logits, some) * counted.astype("float32").mean()

    return loss


def inputs_of_stages(inputs) -> list:
    """The inputs of the first and of the last stage: token ids and labels of a batch or of its micro batches.

    Other fields of the batch are not sent to stages.
    """
    if isinstance(inputs, dict):
        return [inputs["input_ids"], inputs["labels"]]
    return [_tensors(inputs, "input_ids"), _tensors(inputs, "labels")]


def _tensors(batches: list[dict], name: str) -> list[paddle.Tensor]:
    return [batch[name] for batch in batches]


class AutoParallel(Feature):
    """``--enable_auto_parallel``: a plan of annotations shards PaddleNLP's single-device model."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.training.enable_auto_parallel

    def configure(self, run: Run) -> None:
        run.model_config = for_one_device(run.model_config)
        run.trainer_kind = ParallelTrainer


class Pipeline(Feature):
    """``--pipeline_parallel_degree``: PaddleNLP's pipeline."""

    def takes_part(self, run: Run) -> bool:
        training = run.arguments.training
        return training.pipeline_parallel_degree > 1 and not training.enable_auto_parallel

    def configure(self, run: Run) -> None:
        run.trainer_kind = PipelineTrainer
        if _is_dualpipev(run):
            run.model_config.use_dualpipev = True

    def on_model(self, run: Run) -> None:
        if _is_dualpipev(run):
            count = split_backward.apply(run.model)
            run.notes.append(f"pipeline: DualPipeV; {count} linear layers compute weight gradients later")


def _is_dualpipev(run: Run) -> bool:
    return run.arguments.training.pipeline_schedule == schedules.DUALPIPEV


class Overlap(Feature):
    """``--overlap``: tensor-parallel layers overlap computation with communication."""

    def takes_part(self, run: Run) -> bool:
        training = run.arguments.training
        return bool(training.overlap) and training.tensor_parallel_degree > 1

    def on_model(self, run: Run) -> None:
        choose = overlap.chooser(run.arguments.training.overlap, say)
        run.notes.append(f"overlap: {overlap.apply_overlap(run.model, choose).summary()}")
