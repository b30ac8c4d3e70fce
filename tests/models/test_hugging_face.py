"""Checkpoints of this project in Hugging Face's transformers, and the other way round: the same logits.

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
from places import SHARED
from tiny_models import FIELDS, VOCABULARY, build, fields_of, logits_of

from llm_npu.models import pretrained, weights

PROGRAM = SHARED / "fused_models" / "hugging_face.py"
PYTHON = os.environ.get("LLM_NPU_HF_PYTHON", sys.executable)
FIND = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
IDS = np.random.default_rng(3).integers(3, VOCABULARY, (2, 24))


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
    for name in FIELDS:
        (folder / name / "ours").mkdir(parents=True)
        (folder / name / "fields.json").write_text(json.dumps(fields_of(name)))
        weights.save(build(name), folder / name / "ours")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, PROGRAM, folder], env=environment, timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("writer", ["ours", "theirs"])
@pytest.mark.parametrize("name", FIELDS)
def test_logits_agree(checkpoints, on_cpu, name, writer):
    folder = checkpoints / name
    ours = logits_of(pretrained.load_model(folder / writer), IDS)
    theirs = np.load(folder / f"{writer}.npy")
    # fp32 sums of up to 96 terms, a dozen in a row: 2^-24 * sqrt(96 * 12) of the largest logit
    assert np.abs(ours - theirs).max() < 2**-24 * 34 * np.abs(theirs).max() * 4
