"""Generation on several ranks gives the tokens of one."""

import json
from pathlib import Path

import generating_rank
import pytest
import ranks
from tiny_models import VOCABULARY, build, fields_of

from llm_npu.inference.mesh import Mesh
from llm_npu.models import weights

PROGRAM = Path(generating_rank.__file__)
KINDS = ("llama", "llama-tied", "llama3", "qwen2", "qwen2-tied", "mistral")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The folder of a checkpoint of each kind, and the tokens that one rank generates from it."""
    assert generating_rank.VOCABULARY == VOCABULARY
    folder, expected = tmp_path_factory.mktemp("checkpoints"), {}
    for kind in KINDS:
        model = build(kind)
        (folder / kind).mkdir()
        weights.save(model, folder / kind)
        expected[kind] = generating_rank.generated(model)
    return folder, expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"tensor": 2},
        {"pipeline": 2},
        {"tensor": 2, "pipeline": 2},
        {"tensor": 2, "auto": True},
        {"tensor": 2, "pipeline": 2, "auto": True},
        {"tensor": 2, "auto": True, "to_static": True},
    ],
    ids=["tensor parallel", "pipeline", "both", "auto-parallel", "auto-parallel and stages", "programs"],
)
def test_tokens_are_those_of_one_rank(checkpoints, tmp_path, fields):
    folder, expected = checkpoints
    mesh = Mesh(**fields)
    kinds = [kind for kind in KINDS if not (mesh.auto and kind == "mistral")]  # which has no annotations
    reports = ranks.run(PROGRAM, mesh.ranks, tmp_path, json.dumps(fields), *(folder / kind for kind in kinds))
    for report in reports:
        assert {kind: each["ids"] for kind, each in report.items()} == {
            kind: expected[kind] for kind in kinds
        }


def test_a_family_without_annotations_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(fields_of("mistral")))
    Mesh(2).check(tmp_path)
    with pytest.raises(ValueError, match=r"is a Mistral; accepted: Llama, Qwen2"):
        Mesh(2, auto=True).check(tmp_path)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tensor": 4}, "--tensor_parallel_degree is 4, but .* has num_key_value_heads 2"),
        ({"tensor": 3}, "--tensor_parallel_degree is 3, but .* has num_attention_heads 4"),
        ({"tensor": 2, "to_static": True}, "--to_static .* give --enable_auto_parallel"),
        (
            {"tensor": 2, "pipeline": 2, "auto": True, "to_static": True},
            "--to_static generates without stages",
        ),
        ({"pipeline": 3}, "--pipeline_parallel_degree is 3, but .* has 2 layers; give 2 or less"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(tmp_path, fields, sentence):
    (tmp_path / "config.json").write_text(json.dumps(fields_of("llama")))
    with pytest.raises(ValueError, match=sentence):
        Mesh(**fields).check(tmp_path)
    Mesh(2, 2).check(tmp_path)
