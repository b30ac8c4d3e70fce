"""PaddleFormers' published file for Qwen's vision-language models, and a small task that it trains on."""

from pathlib import Path

import front_ends
from places import ROOT, SHARED

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
TEMPLATES = {"qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl_nothink"}


def make_task(run_python, model_type: str, folder: Path) -> Path:
    """The folder, with images of words, conversations and a tiny model."""
    program = front_ends.HERE / "make_tiny_qwen_vl.py"
    path = f"{SHARED}:{ROOT / 'examples/ocr'}"
    done = run_python("-m", "llm_npu.formers", program, folder, model_type, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    return folder


def configuration(model_type: str, task: Path, **changes) -> dict:
    """The published file for the task in a folder."""
    data = {f"{part}_dataset_path": str(task / f"{part}.jsonl") for part in ("train", "eval")}
    model = {"model_name_or_path": str(task / "model"), "template": TEMPLATES[model_type]}
    return {**QWEN_VL, **data, **model, **changes}
