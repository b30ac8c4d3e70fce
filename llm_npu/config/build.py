"""Flag values -> RunConfig, with the library's training arguments. Imports the library."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
from collections.abc import Mapping

from llm_npu.core.errors import UserError
from llm_npu.models.library import adapter, names

from .arguments import DataArguments, FusedArguments, ModelArguments, PreferenceArguments, RunConfig
from .early import process_count
from .formats import paddle_name
from .library_flags import library_flags
from .parallel_checks import SPLIT_SEQUENCES, UNSUPPORTED_PARALLELISM
from .schedules import DUALPIPEV
from .training import TrainingFlags

OWN_CHECKPOINTS = ("unified_checkpoint", "save_sharded_model", "load_sharded_model", "force_reshard_pp")


@dataclasses.dataclass
@adapter.with_fields_of_models  # use_fused_linear, recompute_granularity, ...
class PretrainArguments(TrainingFlags, adapter.TrainingArguments):
    """PaddleNLP's ``TrainingArguments`` with this script's flags and defaults."""

    def __post_init__(self):
        eval_batch_size = self.per_device_eval_batch_size
        if self.enable_auto_parallel and self.pipeline_parallel_degree > 1:
            # PaddleNLP would set it to this with a warning; llm_npu.parallel accepts any batch.
            self.per_device_eval_batch_size = (
                self.per_device_train_batch_size * self.gradient_accumulation_steps
            )
        super().__post_init__()
        if self.enable_auto_parallel:
            self.per_device_eval_batch_size = eval_batch_size

    def to_sanitized_dict(self) -> dict:
        """For trackers. Booleans become text: VisualDL 2.5 makes them integers, which protobuf rejects."""
        values = super().to_sanitized_dict()
        return {name: str(value) if isinstance(value, bool) else value for name, value in values.items()}


def run_config(
    flags: Mapping[str, object],
    explicit: Mapping[str, object],
    ineffective: tuple[tuple[str, str], ...],
    notes: tuple[str, ...],
) -> RunConfig:
    """Build the dataclasses of a run from ``flags``. Raises UserError for values that the library rejects."""
    device = flags["device"]
    values = dict(flags, device=paddle_name(device))
    # Reset flags without effect here, which the library would act on:
    if values["tensor_parallel_degree"] <= 1 or process_count() == 1:
        values["sequence_parallel"] = False  # the layers would need a group
    # The library has one group for all ranks that share a sequence; it refuses both degrees together.
    shared = {name: max(values[name], 1) if process_count() > 1 else 1 for name in SPLIT_SEQUENCES}
    ranks = math.prod(shared.values())
    values["sep_parallel_degree"] = ranks if ranks > 1 else -1
    values["context_parallel_degree"] = -1
    experts = max(values["expert_parallel_degree"], 1) if process_count() > 1 else 1
    # The library has its own parallelism over experts. Without effect here, its layers would need groups.
    own = (*UNSUPPORTED_PARALLELISM, "expert_parallel_degree")
    values |= {name: library_flags()[name].default for name in own}
    values |= dict.fromkeys(OWN_CHECKPOINTS, False)  # on resume the library would look for its own files
    values |= {"dataloader_num_workers": 0, "distributed_dataloader": False}
    values |= {upstream: values[name] for upstream, name in names.RENAMED.items()}
    values |= adapter.translated(values)
    if values["pipeline_schedule"] == DUALPIPEV:
        values["pipeline_parallel_config"] = f"use_{DUALPIPEV}"
    kinds = (ModelArguments, FusedArguments, DataArguments, PreferenceArguments, PretrainArguments)
    parts = (_instance(kind, values) for kind in kinds)
    more = {"ring": shared["context_parallel_degree"], "expert_ranks": experts}
    return RunConfig(*parts, device=device, explicit=explicit, ineffective=ineffective, notes=notes, **more)


def _instance(kind: type, values: Mapping[str, object]) -> object:
    fields = [field.name for field in dataclasses.fields(kind) if field.init]
    arguments = {name: values[name] for name in fields if name in values}
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # Paddle prints its flags when it sets up groups
            return kind(**arguments)
    except (AssertionError, ValueError) as error:  # the libraries assert some user input
        raise UserError(str(error) or f"{names.TITLE} rejects this combination of arguments") from error
