"""Checkpoints of PaddleFormers' models in Hugging Face's transformers, and back: the same logits."""

import paddle
import pytest
from fused_models import torch_interpreter
from fused_models.formers import BY_NAME, SIZES
from fused_models.torch_interpreter import IDS, assert_same_logits

from llm_npu.surgery import apply_fused_kernels

pytestmark = pytest.mark.sampled

NAMES = (
    "llama-gqa",
    "llama-llama3",
    "qwen2",
    "qwen3",
    "qwen3-tied",
    "qwen3-moe-normed",
    "ernie4.5",
    "ernie4.5-moe",
    "deepseek-v3-normed",
)


def fields_of(name):
    """The fields of its config.json."""
    family = BY_NAME[name]
    return {**SIZES, "model_type": family.model_type, "hidden_act": "silu", **family.settings}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return torch_interpreter.checkpoints(
        tmp_path_factory.mktemp("checkpoints"),
        {name: fields_of(name) for name in NAMES},
        lambda name, folder: BY_NAME[name].build().save_pretrained(str(folder)),
    )


@pytest.mark.parametrize("writer", ["ours", "theirs"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_agree(checkpoints, on_cpu, name, writer):
    model = BY_NAME[name].model.from_pretrained(str(checkpoints / name / writer), dtype="float32")
    model.eval()
    apply_fused_kernels(model, strict=True)
    with paddle.no_grad():
        logits = model(input_ids=paddle.to_tensor(IDS), return_dict=True).logits.numpy()
    assert_same_logits(logits, checkpoints / name / f"{writer}.npy", terms=192)
