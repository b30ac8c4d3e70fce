"""Generation with PaddleFormers' models on several ranks gives the tokens of one."""

import json
from pathlib import Path

import generating_rank
import paddle
import pytest
import ranks

from llm_npu import patches
from llm_npu.inference.mesh import Mesh
from llm_npu.models import families, presets, pretrained, weights

pytestmark = pytest.mark.slow

KINDS = ("llama", "qwen2", "qwen3", "qwen3_moe", "ernie4_5")
SIZES = {
    "vocab_size": generating_rank.VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # far apart logits, so that no two are equal after rounding
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The folder of a checkpoint of each family, and the tokens that one rank generates from it."""
    patches.apply()
    folder, expected = tmp_path_factory.mktemp("checkpoints"), {}
    for kind in KINDS:
        paddle.seed(1)
        (folder / kind).mkdir()
        config = presets.model_config(families.FAMILIES[kind].tiny, **SIZES)
        weights.save(families.new_model(config), folder / kind)
        expected[kind] = generating_rank.generated(pretrained.load_model(folder / kind))
    return folder, expected


@pytest.mark.parametrize(
    "fields",
    [{"tensor": 2}, {"pipeline": 2}, {"tensor": 2, "pipeline": 2}],
    ids=["tensor parallel", "pipeline", "both"],
)
def test_tokens_are_those_of_one_rank(checkpoints, tmp_path, fields):
    folder, expected = checkpoints
    program, count = Path(generating_rank.__file__), Mesh(**fields).ranks
    arguments = (json.dumps(fields), "float32", *(folder / kind for kind in KINDS))
    reports = ranks.run(program, count, tmp_path, *arguments)
    for report in reports:
        assert {kind: result["ids"] for kind, result in report.items()} == expected


def test_annotations_are_refused(checkpoints):
    folder, _ = checkpoints
    with pytest.raises(ValueError, match="needs PaddleNLP"):
        Mesh(2, auto=True).check(folder / "qwen3")
