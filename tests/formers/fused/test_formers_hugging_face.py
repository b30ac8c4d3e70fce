"""Checkpoints of PaddleFormers' models in Hugging Face's transformers, and back: the same logits.

They need an interpreter with torch and transformers (``pip install ".[hf]"``): this one, or the one that the
variable LLM_NPU_HF_PYTHON names. Without it the tests are skipped, and say so.
"""

import json
import os
import subprocess
import sys

import numpy as np
import paddle
import pytest
from fused_models.formers import BY_NAME, SIZES
from fused_models.weights import VOCABULARY
from places import SHARED

from llm_npu.surgery import apply_fused_kernels

PROGRAM = SHARED / "fused_models" / "hugging_face.py"
PYTHON = os.environ.get("LLM_NPU_HF_PYTHON", sys.executable)
FIND = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
IDS = np.random.default_rng(3).integers(3, VOCABULARY, (2, 24))
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
    """A folder with a checkpoint of each library for every model, and the logits that transformers gives."""
    found = subprocess.run([PYTHON, "-c", FIND, "torch", "transformers"], timeout=60)
    if found.returncode:
        pytest.skip(
            f'{PYTHON} has no torch and transformers: pip install ".[hf]", or name an interpreter that has '
            "them in LLM_NPU_HF_PYTHON"
        )
    folder = tmp_path_factory.mktemp("checkpoints")
    np.save(folder / "ids.npy", IDS)
    paddle.set_device("cpu")
    for name in NAMES:
        (folder / name).mkdir()
        (folder / name / "fields.json").write_text(json.dumps(fields_of(name)))
        BY_NAME[name].build().save_pretrained(str(folder / name / "ours"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, PROGRAM, folder], env=environment, timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("writer", ["ours", "theirs"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_agree(checkpoints, on_cpu, name, writer):
    folder = checkpoints / name
    model = BY_NAME[name].model.from_pretrained(str(folder / writer), dtype="float32")
    model.eval()
    apply_fused_kernels(model, strict=True)
    with paddle.no_grad():
        ours = model(input_ids=paddle.to_tensor(IDS), return_dict=True).logits.numpy()
    theirs = np.load(folder / f"{writer}.npy")
    # fp32 sums of up to 192 terms, a dozen in a row: 2^-24 * sqrt(192 * 12) of the largest logit
    assert np.abs(ours - theirs).max() < 2**-24 * 48 * np.abs(theirs).max() * 4
