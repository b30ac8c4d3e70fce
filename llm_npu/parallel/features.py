"""The parallel modes of a run, as features."""

from __future__ import annotations

from llm_npu.core.console import say
from llm_npu.parallel import overlap
from llm_npu.parallel.pipeline_trainer import PipelineTrainer
from llm_npu.parallel.trainer import ParallelTrainer, for_one_device
from llm_npu.training.run import Feature, Run


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


class Overlap(Feature):
    """``--overlap``: tensor parallel layers overlap computation with communication."""

    def takes_part(self, run: Run) -> bool:
        training = run.arguments.training
        return bool(training.overlap) and training.tensor_parallel_degree > 1

    def on_model(self, run: Run) -> None:
        choose = overlap.chooser(run.arguments.training.overlap, say)
        run.notes.append(f"overlap: {overlap.apply_overlap(run.model, choose).summary()}")
