"""Finds unknown and ineffective keys in an argument file for ``paddleformers-cli train``."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import yaml

from llm_npu.core.errors import UserError
from llm_npu.models import upstream_config
from paddle_fused.command_line import nearest_name

_COMPUTE_TYPE = "PaddleFormers takes the dtype from compute_type: bf16, fp16 or float32"
_UNREAD = "PaddleFormers does not read it"
_OTHER_MODELS = "PaddleFormers reads it only in its programs for other models"
_FP8 = "PaddleFormers supports fp8 only with CUDA kernels"
# {key: (values without effect, why)}; no values means all. A test compares them with PaddleFormers' source.
WITHOUT_EFFECT: dict[str, tuple[tuple[object, ...], str]] = {
    **dict.fromkeys(
        (
            *("adaptive_max_imgtoken_option", "adaptive_max_imgtoken_rate", "balanced_image_preprocess"),
            *("corpus_name", "cp_comm_type", "do_export", "drop_untrainble_sample", "dsa_indexer_loss_coeff"),
            *("embedding_init_method", "embedding_init_method_std", "experimental_dataflow"),
            *("fp32_residual_connection", "frequency_penalty", "gated_linear_unit", "im_prefix_length"),
            *("image_dtype", "image_token_len", "init_method", "lazy_data_processing", "load_args_from_api"),
            *("min_tokens", "moe_deepep_num_sms", "moe_dequant_input", "moe_ep_barrier"),
            *("moe_pad_expert_input_to_capacity", "moe_router_fusion", "moe_router_load_balancing_type"),
            *("moe_shared_expert_overlap", "moe_subbatch_token_num_after_dispatch", "moe_use_fusion_node"),
            *("mtp_distillation_loss", "no_cuda", "no_rope_freq", "non_batch_p2p_comm"),
            *("one_sample_in_one_seq", "output_layer_init_method", "pp_need_data", "pp_need_data_degree"),
            *("presence_penalty", "prompt_dir", "render_timestamp", "serialize_output", "sft_shift_by_one"),
            *("stream_options", "tokenizer_name", "tp_async_allreduce", "use_pic_id"),
        ),
        ((), _UNREAD),
    ),
    **dict.fromkeys(
        (
            *("data_cache", "decay_function", "enable_linear_fused_grad_add", "ernie_model_config"),
            *("gc_interval", "global_logging_interval", "high_precision_rope", "log_global_grad_norm"),
            *("loss_subbatch_seqlen", "max_new_tokens", "merge_with_qdq_base_model", "moe_gate_lr_ratio"),
            *("moe_with_send_router_loss", "multi_latent_attention", "no_recompute_layers", "normalization"),
            *("num_consecutive", "num_empty_layers_add_in_head", "position_embedding_type"),
            *("pp_delay_scale_loss", "repetition_penalty", "resume_from_huggingface_ckpt", "rope_3d"),
            *("same_data", "sd_sharding_comm_overlap", "sd_shardingv1_comm_overlap", "shuffle_consecutive"),
            *("softmax_type", "spatial_conv_size", "token_balance_loss", "use_mem_eff_attn", "use_moe"),
            *("use_ortho_loss_callback", "use_qk_norm", "use_recompute_mtp", "use_unified_moe"),
            *("variable_resolution", "video_frames_sample", "video_max_frames", "video_min_frames"),
            "video_target_frames",
        ),
        ((), _OTHER_MODELS),
    ),
    **dict.fromkeys(("use_fp8", "fp8", "fp8_wgrad"), ((), _FP8)),
    "use_sparse_flash_attn": ((), f"{_UNREAD}; fused attention is sparse whenever possible"),
    "fuse_softmax_mask": ((), f"{_UNREAD}; fused attention includes the softmax"),
    "use_fast_layer_norm": (
        (),
        "PaddleFormers sets it in the model's configuration, where no model reads it",
    ),
    "fuse_gate_detach_matmul": ((), "PaddleFormers takes it from the model's config.json"),
    "bf16": ((False,), _COMPUTE_TYPE),
    "fp16": ((True,), _COMPUTE_TYPE),
}
# Families that only support recompute of whole layers.
WHOLE_LAYERS = ("llama", "qwen2", "qwen3", "ernie4_5")
# The trainer splits the batches, but no model that runs on npu exchanges heads or keys.
SPLIT_SEQUENCES = (
    "sep_parallel_size",
    "context_parallel_size",
    "sep_parallel_degree",
    "context_parallel_degree",
)
PARSED = ("ModelArguments", "DataArguments", "End2EndProcessorArguments", "GeneratingArguments")
PARSED += ("FinetuningArguments",)  # dataclasses that the command fills from the file
LARGEST = 1 << 20  # bytes of a file; larger files are left to PaddleFormers


def without_effect(arguments: list[str]) -> list[str]:
    """A note for each key in ``FILE [KEY=VALUE ...]`` that has no effect or will fail."""
    settings = read_settings(arguments)
    notes = [
        f"{name}: {settings[name]!r:.60} does nothing. {why}."
        for name, (values, why) in WITHOUT_EFFECT.items()
        if name in settings and (not values or settings[name] in values)
    ]
    return notes + _recompute(settings) + _one_rank(settings)


def check(arguments: list[str]) -> None:
    """Raise UserError for split sequences and for unknown keys.

    With split sequences, PaddleFormers would train each rank on its own part only. For an unknown key, it
    would print a traceback.
    """
    settings, known = read_settings(arguments), known_keys()
    for name in SPLIT_SEQUENCES:
        if isinstance(settings.get(name), int) and settings[name] > 1:
            raise UserError(
                f"{arguments[0]}: {name} is {settings[name]}, but PaddleFormers' models attend only to the "
                "rank's own tokens; use tensor_model_parallel_size with sequence_parallel: true, or "
                "train with PaddleNLP and llm-npu train --sep_parallel_degree"
            )
    for name in settings:
        if known and name not in known:
            meant = nearest_name(str(name), known)
            hint = f"did you mean {meant}?" if meant else "remove it"
            raise UserError(f"{arguments[0]}: {str(name)!r:.80} is not a key of PaddleFormers; {hint}")


def known_keys() -> set[str]:
    """The keys of PaddleFormers' command, from its source; empty if the source has changed."""
    spec = importlib.util.find_spec("paddleformers")
    if spec is None or spec.origin is None:
        return set()
    folder = Path(spec.origin).parent
    files = [*(folder / "cli/hparams").glob("*.py"), folder / "trainer/training_args.py"]
    files.append(folder / "transformers/configuration_utils.py")
    classes = {
        node.name: node
        for file in files
        if file.is_file()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    if not {*PARSED, "LlmMetaConfig"} <= classes.keys():
        return set()
    of_models = {
        node.elts[0].value
        for node in ast.walk(classes["LlmMetaConfig"])
        if isinstance(node, ast.Tuple) and len(node.elts) == 4 and isinstance(node.elts[0], ast.Constant)
    }
    return of_models.union(*(_fields(classes, name) for name in PARSED))


def _fields(classes: Mapping[str, ast.ClassDef], name: str) -> set[str]:
    if name not in classes:
        return set()
    body = classes[name].body
    own = {ast.unparse(statement.target) for statement in body if isinstance(statement, ast.AnnAssign)}
    return own.union(*(_fields(classes, ast.unparse(base)) for base in classes[name].bases))


def _recompute(settings: Mapping[object, object]) -> list[str]:
    """Dense models only support recompute of whole layers."""
    model = upstream_config.model_type(str(settings.get("model_name_or_path")))
    if settings.get("recompute_granularity") != "selective" or model not in WHOLE_LAYERS:
        return []
    return [
        f"recompute_granularity: 'selective' does nothing. PaddleFormers' {model} only recomputes whole "
        "layers; use full, with recompute_method: uniform and recompute_num_layers: 1."
    ]


def _one_rank(settings: Mapping[object, object]) -> list[str]:
    """Settings that fail with one visible device: PaddleFormers sets up no groups for a single rank."""
    if len(os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "0,1").split(",")) > 1:
        return []
    # With LoRA, the base model is the reference.
    full = str(settings.get("fine_tuning", "LoRA")).lower() == "full"
    if str(settings.get("stage")).upper() != "DPO" or not full or settings.get("reference_free"):
        return []
    return [
        "stage: DPO with a reference model fails in PaddleFormers on one rank; make two devices visible, or "
        "train with llm-npu train --stage dpo."
    ]


def read_settings(arguments: list[str]) -> dict:
    """The keys and values of ``FILE [KEY=VALUE ...]``."""
    settings = _content(Path(arguments[0])) if arguments else {}
    for argument in arguments[1:]:
        name, _, value = argument.partition("=")
        settings[name.partition(".")[0]] = _value(value)
    return settings


def _content(file: Path) -> dict:
    """The content of a YAML or JSON file; empty for a file that PaddleFormers itself rejects."""
    try:
        if file.stat().st_size > LARGEST:
            return {}
        content = _value(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _value(text: str) -> object:
    """Parse a value as PaddleFormers does; None if it would be rejected, such as more than 4,300 digits."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
