"""Patches for PaddleFormers, and stubs for modules that only exist in its CUDA builds.

Each docstring states the affected versions and the symptom. Nothing changes where the missing module is
installed. The tests in ``tests/formers/test_formers_patches.py`` fail without the patches.
"""

from __future__ import annotations

import importlib.metadata

from . import checkpoints, deepseek, experts, masks, parallel, trainer, vision, without_cuda

VERSIONS = ((1, 1), (1, 3))  # first affected version, first unaffected version


def apply() -> None:
    """Apply the patches that the installed PaddleFormers needs; idempotent.

    Call it before the first import of a PaddleFormers model.
    """
    if not _is_affected():
        return
    without_cuda.apply()
    without_cuda.allow_synchronize()
    without_cuda.supply_rms_norm()
    experts.supply_router_losses()
    masks.fix_npu_masks()
    masks.fix_eager_attention_in_stages()
    masks.fix_flashmask_padding()
    masks.fix_sliding_window_rows()
    experts.fix_qwen3_moe_gate_dtype()
    parallel.fix_ernie_stages()
    parallel.fix_deepseek_stage_labels()
    parallel.fix_norms_of_heads()
    parallel.fix_qwen3_moe_last_norm()
    parallel.fix_lora_of_row_parallel_layers()
    deepseek.fix_heads()
    deepseek.fix_rotated_key()
    deepseek.fix_routers_and_experts()
    checkpoints.fix_qwen2_5_vl_biases()
    vision.fix_qwen3_vl_recompute()
    vision.fix_qwen3_vl_deepstack_gradients()
    vision.fix_paddleocr_vl_shards()
    vision.fix_lora_of_frozen_parts()


def apply_to_trainer() -> None:
    """Apply the patches for PaddleFormers' own trainer, which this project's scripts do not use; idempotent.

    Imports the trainer, which takes seconds.
    """
    if _is_affected():
        checkpoints.fix_resume_on_one_rank()
        vision.fix_augmentation_in_threads()
        trainer.fix_gradient_clipping_in_float32()
        trainer.fix_evaluation_of_ranks()
        trainer.fix_last_row_of_evaluation()
        without_cuda.supply_gpt_model_of_trainer()


def _is_affected() -> bool:
    major, minor = importlib.metadata.version("paddleformers").split(".")[:2]
    first, end = VERSIONS
    return first <= (int(major), int(minor)) < end
