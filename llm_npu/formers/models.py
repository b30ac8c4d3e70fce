"""Refuses models, and layouts of models, that PaddleFormers' programs cannot train: ``check(settings)``."""

from __future__ import annotations

from collections.abc import Mapping

from llm_npu.core.errors import UserError
from llm_npu.models import upstream_config
from llm_npu.models.paddleformers.vision_language import FAMILIES

# {model_type: (title, kernels of its MoE layers that only CUDA builds of Paddle register)}
NEEDS_CUDA_KERNELS = {
    "ernie4_5_moe_vl": (
        "ERNIE-4.5-VL",
        (
            *("moe_gate_dispatch", "moe_gate_dispatch_partial_nosoftmaxtopk", "moe_combine"),
            *("expand_modality_expert_id", "build_src_rank_and_local_expert_id", "int_bincount"),
            "cal_aux_loss",
        ),
    ),
}


WITHOUT_TENSOR_PARALLELISM = {"qwen3_vl_moe": "Qwen3-VL-MoE"}


def check(settings: Mapping[str, object]) -> None:
    """Raise UserError if the model of ``model_name_or_path`` cannot be trained with these settings."""
    if settings.get("sequence_parallel") is True and settings.get("padding_free") is True:
        raise UserError(
            "sequence_parallel: true with padding_free: true fails in PaddleFormers, whose models then need "
            "rows of max_seq_len tokens; set padding_free: false, with or without packing: true"
        )
    folder = str(settings.get("model_name_or_path"))
    kind = upstream_config.model_type(folder)
    if kind in NEEDS_CUDA_KERNELS:
        title, kernels = NEEDS_CUDA_KERNELS[kind]
        accepted = ", ".join(family.title for family in FAMILIES.values())
        raise UserError(
            f"{folder}: {title} needs kernels that only CUDA builds of Paddle have: {', '.join(kernels)}; "
            f"vision-language models accepted on npu: {accepted}"
        )
    ranks = settings.get("tensor_model_parallel_size")
    if kind in WITHOUT_TENSOR_PARALLELISM and isinstance(ranks, int) and ranks > 1:
        raise UserError(
            f"tensor_model_parallel_size: {ranks}; accepted for {WITHOUT_TENSOR_PARALLELISM[kind]}: 1, "
            "because PaddleFormers divides its experts only with paddlefleet. Use data parallelism."
        )
