"""Hugging Face's transformers on a folder of checkpoints, in an interpreter that has torch.

The interpreter is this one, or the one that the variable LLM_NPU_HF_PYTHON names (``pip install ".[hf]"``).
Without torch and transformers the test is skipped, and says so.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import paddle
import pytest
from places import SHARED

from .weights import VOCABULARY

PROGRAM = SHARED / "fused_models" / "hugging_face.py"
PYTHON = os.environ.get("LLM_NPU_HF_PYTHON", sys.executable)
FIND = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
IDS = np.random.default_rng(3).integers(3, VOCABULARY, (2, 24))


def checkpoints(folder: Path, fields: Mapping[str, dict], save: Callable[[str, Path], object]) -> Path:
    """``folder`` with the checkpoints ``ours`` and ``theirs`` of each model and their logits in transformers.

    ``fields``: {model: the fields of its config.json}; ``save`` writes this project's checkpoint of a model.
    """
    result = subprocess.run([PYTHON, "-c", FIND, "torch", "transformers"], timeout=60)
    if result.returncode:
        pytest.skip(
            f'{PYTHON} has no torch and transformers: pip install ".[hf]", or name an interpreter that has '
            "them in LLM_NPU_HF_PYTHON"
        )
    np.save(folder / "ids.npy", IDS)
    paddle.set_device("cpu")
    for name, of_config in fields.items():
        (folder / name / "ours").mkdir(parents=True)
        (folder / name / "fields.json").write_text(json.dumps(of_config))
        save(name, folder / name / "ours")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, PROGRAM, folder], env=environment, timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def assert_same_logits(logits: np.ndarray, file: Path, terms: int) -> None:
    """float32 sums of up to ``terms`` terms, a dozen in a row: 2^-24 sqrt(12 terms) of the largest logit."""
    reference = np.load(file)
    bound = 2**-24 * np.sqrt(12 * terms) * np.abs(reference).max() * 4
    assert np.abs(logits - reference).max() < bound
