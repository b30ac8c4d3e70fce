"""PaddleFormers' published files for vision-language models, and small tasks that they train on."""

import re
from pathlib import Path

import front_ends
from places import ROOT, SHARED

EVALUATED = re.compile(r"eval_loss: ([\d.]+)")
EXAMPLE = ROOT / "examples/ocr"
# PaddleFormers' paddleocr-vl_full_16k_config.yaml; then paths, sizes and rates of a short run.
PADDLEOCR_VL = {
    "train_dataset_type": "messages",
    "eval_dataset_type": "messages",
    "train_dataset_prob": "1.0",
    "eval_dataset_prob": "1.0",
    "padding_free": True,
    "truncate_packing": False,
    "mix_strategy": "concat",
    "template_backend": "custom",
    "template": "paddleocr_vl",
    "_attn_implementation": "flashmask",
    "stage": "VL-SFT",
    "fine_tuning": "full",
    "seed": 23,
    "do_train": True,
    "do_eval": True,
    "num_train_epochs": 2,
    "max_estimate_samples": 500,
    "evaluation_strategy": "steps",
    "save_strategy": "steps",
    "logging_steps": 1,
    "disable_tqdm": True,
    "eval_accumulation_steps": 16,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.01,
    "weight_decay": 0.1,
    "adam_epsilon": 1.0e-8,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "sharding": "stage1",
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "bf16": True,
    "fp16_opt_level": "O2",
    "unified_checkpoint": False,
    "save_checkpoint_format": "flex_checkpoint",
    "load_checkpoint_format": "flex_checkpoint",
    "device": "npu",
    "max_seq_len": 256,
    "dataloader_num_workers": 1,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_steps": front_ends.STEPS,
    "eval_steps": 5,
    "save_steps": 5,
    "learning_rate": 2.0e-3,
    "min_lr": 1.0e-4,
    "output_dir": "./checkpoint",
    "logging_dir": "./visualdl",
}
# The config.json of the published PaddleOCR-VL: its sizes, as in examples/ocr/count_memory.py.
PUBLISHED_MODEL = {
    "model_type": "paddleocr_vl",
    "vocab_size": 103424,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "image_token_id": 100295,
    "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
    "vision_config": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
    },
}
LORA = {"fine_tuning": "lora", "lora": True, "lora_rank": 8}
# As the template that PaddleOCR-VL-1.5's published files register: a line break after "Assistant:".
TEMPLATE = """
from paddleformers.datasets.template.augment_utils import *
from paddleformers.datasets.template.mm_plugin import *
from paddleformers.datasets.template.template import *


@dataclass
class PluginWithoutAugmentation(PaddleOCRVLPlugin):
    def __init__(self, image_token, video_token, audio_token, **kwargs):
        super().__init__(image_token, video_token, audio_token, **kwargs)
        self.image_augmentation = transforms.Compose([])


register_mm_plugin(name="paddleocr_vl_v15", plugin_class=PluginWithoutAugmentation)
register_template(
    name="paddleocr_vl_v15",
    format_user=StringFormatter(slots=["User: {{content}}\\nAssistant:\\n"]),
    format_assistant=StringFormatter(slots=["{{content}}"]),
    format_system=StringFormatter(slots=["{{content}}\\n"]),
    format_prefix=EmptyFormatter(slots=["<|begin_of_sentence|>"]),
    chat_sep="<|end_of_sentence|>",
    mm_plugin=get_mm_plugin(name="paddleocr_vl_v15", image_token="<|IMAGE_PLACEHOLDER|>"),
)
"""
# PaddleFormers' examples/config/sft-vl/full_tp.yaml; the data as messages.
QWEN_VL = {
    **front_ends.PUBLISHED,
    "train_dataset_type": "messages",
    "eval_dataset_type": "messages",
    "packing": True,
    "template_backend": "custom",
    "stage": "VL-SFT",
    "do_eval": False,
    "num_train_epochs": 20,
    "freeze_config": "freeze_vision freeze_aligner",
    "weight_decay": 0.0,
    "adam_beta2": 0.999,
    "device": "npu",
}
PUBLISHED = {
    "paddleocr_vl": PADDLEOCR_VL,
    "qwen2_5_vl": {**QWEN_VL, "template": "qwen2_vl"},
    "qwen3_vl": {**QWEN_VL, "template": "qwen3_vl_nothink"},
}


def make_task(run_python, model_type: str, folder: Path) -> Path:
    """The folder, with images of words, conversations and a tiny model, which two ranks can share."""
    program = [EXAMPLE / "make_task.py", folder, "--train_words", "64", "--eval_words", "8"]
    program += ["--key_value_heads", "2"]
    if model_type != "paddleocr_vl":
        program = [front_ends.HERE / "make_tiny_qwen_vl.py", folder, model_type]
    done = run_python("-m", "llm_npu.formers", *program, PYTHONPATH=f"{SHARED}:{EXAMPLE}")
    assert done.returncode == 0, done.stderr
    return folder


def write_template(folder: Path) -> Path:
    """The file that registers the template of PaddleOCR-VL-1.5."""
    file = folder / "paddleocr_vl_v15_template.py"
    file.write_text(TEMPLATE)
    return file


def with_template(file: Path) -> dict:
    """The changes of PaddleOCR-VL's published file for this template, which augments no image."""
    return {"template": "paddleocr_vl_v15", "custom_register_path": str(file)}


def configuration(model_type: str, task: Path, **changes) -> dict:
    """The published file for the task in a folder."""
    data = {f"{part}_dataset_path": str(task / f"{part}.jsonl") for part in ("train", "eval")}
    return {**PUBLISHED[model_type], **data, "model_name_or_path": str(task / "model"), **changes}


def evaluations(logs: Path) -> list[float]:
    """The losses of a job's evaluations."""
    return [*map(float, EVALUATED.findall((logs / "workerlog.0").read_text(errors="replace")))]
