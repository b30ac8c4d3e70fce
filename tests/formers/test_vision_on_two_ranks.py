"""The published files for vision-language models on two ranks: they train as one process.

Each run is a process of ``llm-npu formers train``. Both runs of a row take the same micro batches, and their
losses are compared: in float32 only roundings may differ, in bfloat16 the ceiling is that of front_ends.
ADAM_EPSILON keeps roundings of small gradients from growing to steps of the learning rate.
"""

import functools

import front_ends
import pytest
from front_ends import finished, train
from roundings import ADAM_EPSILON
from vision_recipes import LORA, configuration, make_task, with_template, write_template

pytestmark = pytest.mark.slow

*FUSED, _, _ = front_ends.of_page("train")
STEPS = 5
SECONDS = 1800  # of a job, on a busy machine
OPERATORS = {"flash_attention", "rms_norm", "rotary_mul", "swiglu"}
CEILING = {"float32": 2e-4, "bfloat16": front_ends.CEILING}
DTYPES = {"float32": front_ends.FLOAT32, "bfloat16": {}}
SHORT = {
    "max_steps": STEPS,
    "warmup_steps": 0,
    "learning_rate": 5.0e-4,
    "gradient_accumulation_steps": 2,
    "adam_epsilon": ADAM_EPSILON,
    "freeze_config": "",  # trains the vision tower
    "save_steps": 100,
    "do_eval": False,
    "evaluation_strategy": "no",
    "dataloader_num_workers": 0,
}
TENSOR_PARALLEL = {"tensor_model_parallel_size": 2}
SEQUENCE_PARALLEL = {**TENSOR_PARALLEL, "sequence_parallel": True}
DATA_PARALLEL = {"sharding": "", "gradient_accumulation_steps": 1}
STAGE_1 = {"sharding": "stage1", "gradient_accumulation_steps": 1}
STAGE_2 = {"sharding": "stage2", "gradient_accumulation_steps": 1}
START_ALIKE = {  # tensor-parallel ranks draw other random weights for LoRA than one process
    "LLM_NPU_ON_IMPORT": "paddleformers.peft.lora.lora_model=same_lora",
    "PYTHONPATH": str(front_ends.HERE),
}
# (family, dtype, changes of the published file, more changes on two ranks).
ROWS = {
    "PaddleOCR-VL, data parallel, float32": ("paddleocr_vl", "float32", {}, DATA_PARALLEL),
    "PaddleOCR-VL, tensor parallel, float32": ("paddleocr_vl", "float32", {}, TENSOR_PARALLEL),
    "PaddleOCR-VL, stage 1": ("paddleocr_vl", "bfloat16", {}, STAGE_1),
    "PaddleOCR-VL, stage 2": ("paddleocr_vl", "bfloat16", {}, STAGE_2),
    "PaddleOCR-VL, LoRA, tensor parallel, float32": ("paddleocr_vl", "float32", LORA, TENSOR_PARALLEL),
    "PaddleOCR-VL, LoRA, stage 1": ("paddleocr_vl", "bfloat16", LORA, STAGE_1),
    "Qwen2.5-VL, data parallel, float32": ("qwen2_5_vl", "float32", {}, DATA_PARALLEL),
    "Qwen2.5-VL, tensor and sequence parallel, float32": ("qwen2_5_vl", "float32", {}, SEQUENCE_PARALLEL),
    "Qwen2.5-VL, tensor and sequence parallel": ("qwen2_5_vl", "bfloat16", {}, SEQUENCE_PARALLEL),
    "Qwen2.5-VL, stage 1": ("qwen2_5_vl", "bfloat16", {}, STAGE_1),
    "Qwen2.5-VL, stage 2": ("qwen2_5_vl", "bfloat16", {}, STAGE_2),
    "Qwen2.5-VL, LoRA, tensor and sequence parallel, float32": (
        "qwen2_5_vl",
        "float32",
        LORA,
        SEQUENCE_PARALLEL,
    ),
    "Qwen2.5-VL, LoRA, stage 1": ("qwen2_5_vl", "bfloat16", LORA, STAGE_1),
    "Qwen3-VL, tensor and sequence parallel": ("qwen3_vl", "bfloat16", {}, SEQUENCE_PARALLEL),
}


@pytest.fixture(scope="module")
def run(run_python, tmp_path_factory):
    """A function that trains a tiny model of a family on these devices, once: Finished."""

    @functools.cache
    def task(model_type: str):
        return make_task(run_python, model_type, tmp_path_factory.mktemp(model_type))

    @functools.cache
    def of(model_type: str, devices: str, changes: frozenset):
        folder = tmp_path_factory.mktemp("job")
        content = configuration(model_type, task(model_type), **SHORT)
        if model_type == "paddleocr_vl":
            content |= with_template(write_template(folder))
        more = {**START_ALIKE, "ASCEND_RT_VISIBLE_DEVICES": devices, "timeout": SECONDS}
        done, logs = train(run_python, FUSED, folder / "run", content | dict(changes), **more)
        return finished(done, logs, STEPS)

    return of


@pytest.mark.parametrize("row", ROWS)
def test_two_ranks_train_as_one_process(run, row):
    model_type, dtype, changes, shared = ROWS[row]
    changes = DTYPES[dtype] | changes
    alone = run(model_type, "0", frozenset(changes.items()))
    together = run(model_type, "0,1", frozenset((changes | shared).items()))
    assert front_ends.distance(together.losses, alone.losses) < CEILING[dtype], (
        together.losses,
        alone.losses,
    )
    assert alone.losses[-1] < 0.95 * alone.losses[0]
    assert all({operator for operator, _ in rank} == OPERATORS for rank in together.ran)
