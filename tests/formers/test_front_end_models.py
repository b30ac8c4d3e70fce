"""Models and layouts that ``llm-npu formers train`` refuses before anything is built."""

import json
from pathlib import Path

import pytest

from llm_npu.core.errors import UserError
from llm_npu.formers import models


def folder_of(path: Path, model_type: str) -> str:
    (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    return str(path)


def test_ernie_4_5_vl_is_refused_with_the_kernels_that_it_lacks(tmp_path):
    _, kernels = models.NEEDS_CUDA_KERNELS["ernie4_5_moe_vl"]
    with pytest.raises(UserError, match="only CUDA builds of Paddle have") as refusal:
        models.check({"model_name_or_path": folder_of(tmp_path, "ernie4_5_moe_vl")})
    assert all(kernel in str(refusal.value) for kernel in kernels)


@pytest.mark.parametrize("model_type", ["ernie4_5_moe", "qwen3_vl"])
def test_other_models_are_accepted(tmp_path, model_type):
    models.check({"model_name_or_path": folder_of(tmp_path, model_type)})
    models.check({"model_name_or_path": "name/of-a-hub"})


def test_rows_without_padding_are_refused_under_sequence_parallelism(tmp_path):
    settings = {"model_name_or_path": folder_of(tmp_path, "qwen3_vl"), "sequence_parallel": True}
    models.check(settings | {"padding_free": False})
    with pytest.raises(UserError, match="set padding_free: false"):
        models.check(settings | {"padding_free": True})


def test_the_experts_of_qwen3_vl_moe_are_not_divided(tmp_path):
    settings = {"model_name_or_path": folder_of(tmp_path, "qwen3_vl_moe")}
    models.check(settings | {"tensor_model_parallel_size": 1})
    with pytest.raises(UserError, match="accepted for Qwen3-VL-MoE: 1"):
        models.check(settings | {"tensor_model_parallel_size": 2})


def test_the_kernels_exist_only_in_cuda_builds_and_the_model_calls_them():
    import paddleformers
    from paddle.base import core

    registered = core._get_all_register_op_kernels("phi")
    for model_type, (_, kernels) in models.NEEDS_CUDA_KERNELS.items():
        package = Path(paddleformers.__file__).parent / "transformers" / model_type
        source = "".join(file.read_text() for file in package.rglob("*.py"))
        for kernel in kernels:
            assert kernel in source
            assert kernel not in registered


def test_the_command_stops_in_one_sentence(run_python, tmp_path):
    job = {"stage": "VL-SFT", "model_name_or_path": folder_of(tmp_path, "ernie4_5_moe_vl")}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    done = run_python("-m", "llm_npu.formers", "train", "job.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert "moe_combine" in done.stderr
