"""Generation on several ranks gives the tokens of one."""

import json
from pathlib import Path

import generating_rank
import numpy as np
import pytest
import ranks
import run_inputs
from places import TESTS
from precision import ROUNDING
from tiny_models import VOCABULARY, build, fields_of

from llm_npu.inference.mesh import Mesh
from llm_npu.models import pretrained, weights
from llm_npu.training import checkpoint

PROGRAM = Path(generating_rank.__file__)
KINDS = ("llama", "llama-tied", "llama3", "qwen2", "qwen2-tied", "mistral", "gemma", "gpt")
UNANNOTATED = ("mistral", "gemma", "gpt")
TENSOR, STAGES = "--tensor_parallel_degree 2", "--pipeline_parallel_degree 2"
AUTO = "--enable_auto_parallel --fuse_attention_qkv false --fuse_attention_ffn false"
# Of Llamas that two ranks train. Paddle sets up groups once in a process, so auto-parallel has its own.
TRAININGS = [
    {"trained with tensor parallelism": TENSOR, "trained in stages": STAGES},
    {"trained with auto-parallel": f"{AUTO} {TENSOR}"},
]


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
    for kind, trained in _trained(tmp_path_factory.mktemp("trainings")).items():
        (folder / kind).symlink_to(trained)
        expected[kind] = generating_rank.generated(pretrained.load_model(trained))
    return folder, expected


def _trained(folder: Path) -> dict[str, Path]:
    """The checkpoint of each training."""
    arguments = run_inputs.words(
        {
            **run_inputs.inputs(folder, num_attention_heads=4, initializer_range=0.3),
            "bf16": "false",
            "split": "80,20,0",
            "do_eval": "false",
            "max_seq_length": 32,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "max_steps": 2,
            "save_steps": 2,
        }
    )
    for number, methods in enumerate(TRAININGS):
        runs = [[str(folder / name), None, flags] for name, flags in methods.items()]
        program = TESTS / "parallel/resumed_runs.py"
        ranks.run(program, 2, folder / f"program-{number}", json.dumps(runs), *arguments)
    return {name: checkpoint.path_of(folder / name, 2) for methods in TRAININGS for name in methods}


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
    refused = UNANNOTATED if mesh.auto else ("gemma", "gpt") if mesh.pipeline > 1 else ()
    kinds = [kind for kind in expected if kind not in refused]
    arguments = (json.dumps(fields), "float32", *(folder / kind for kind in kinds))
    reports = ranks.run(PROGRAM, mesh.ranks, tmp_path, *arguments)
    for report in reports:
        assert {kind: result["ids"] for kind, result in report.items()} == {
            kind: expected[kind] for kind in kinds
        }


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"tensor": 2}, {"pipeline": 2}, {"tensor": 2, "auto": True}], ids=str)
def test_bfloat16_is_as_accurate_as_on_one_rank(checkpoints, tmp_path, fields):
    """The rule of tests/shared/precision.py: at most twice the error of one rank, and one rounding."""
    folder = checkpoints[0]
    kinds = ("llama", "qwen2")
    arguments = (json.dumps(fields), "bfloat16", *(folder / kind for kind in kinds))
    reports = ranks.run(PROGRAM, 2, tmp_path, *arguments)
    for kind in kinds:
        truth, logits = (
            np.array(generating_rank.last_logits(pretrained.load_model(folder / kind, dtype)))
            for dtype in ("float32", "bfloat16")
        )
        error = np.abs(logits - truth).max()
        assert error > 0
        for report in reports:
            apart = np.abs(np.array(report[kind]["logits"]) - truth).max()
            assert apart <= 2 * error + ROUNDING["bfloat16"] * np.abs(truth).max()


def test_a_family_without_annotations_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(fields_of("mistral")))
    Mesh(2).check(tmp_path)
    with pytest.raises(ValueError, match=r"Mistral .*accepted: Llama, Qwen2"):
        Mesh(2, auto=True).check(tmp_path)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tensor": 4}, "--tensor_parallel_degree is 4, but .* has num_key_value_heads 2"),
        ({"tensor": 3}, "--tensor_parallel_degree is 3, but .* has num_attention_heads 4"),
        ({"tensor": 2, "to_static": True}, "--to_static .* --enable_auto_parallel"),
        (
            {"tensor": 2, "pipeline": 2, "auto": True, "to_static": True},
            "--to_static .* --pipeline_parallel_degree",
        ),
        ({"pipeline": 3}, "--pipeline_parallel_degree is 3, .* 2 layers"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(tmp_path, fields, sentence):
    (tmp_path / "config.json").write_text(json.dumps(fields_of("llama")))
    with pytest.raises(ValueError, match=sentence):
        Mesh(**fields).check(tmp_path)
    Mesh(2, 2).check(tmp_path)


@pytest.mark.parametrize("family", run_inputs.OTHERS)
def test_stages_of_families_that_change_the_embeddings_are_refused(tmp_path, family):
    (tmp_path / "config.json").write_text(json.dumps(run_inputs.LLAMA | run_inputs.OTHERS[family]))
    Mesh(tensor=2).check(tmp_path)
    with pytest.raises(ValueError, match=f"--pipeline_parallel_degree .*{family}"):
        Mesh(pipeline=2).check(tmp_path)
