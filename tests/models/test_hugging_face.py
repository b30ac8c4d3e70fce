"""Checkpoints of this project in Hugging Face's transformers, and the other way round: the same logits."""

import pytest
from fused_models import torch_interpreter
from fused_models.torch_interpreter import IDS, assert_same_logits
from tiny_models import FIELDS, build, fields_of, logits_of

from llm_npu.models import pretrained, weights

pytestmark = pytest.mark.sampled

KINDS = [name for name in FIELDS if name not in ("gemma", "gpt")]  # their fields are PaddleNLP's


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return torch_interpreter.checkpoints(
        tmp_path_factory.mktemp("checkpoints"),
        {name: fields_of(name) for name in KINDS},
        lambda name, folder: weights.save(build(name), folder),
    )


@pytest.mark.parametrize("writer", ["ours", "theirs"])
@pytest.mark.parametrize("name", KINDS)
def test_logits_agree(checkpoints, on_cpu, name, writer):
    logits = logits_of(pretrained.load_model(checkpoints / name / writer), IDS)
    assert_same_logits(logits, checkpoints / name / f"{writer}.npy", terms=96)
