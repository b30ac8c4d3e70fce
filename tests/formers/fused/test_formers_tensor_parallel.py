"""Fused models of PaddleFormers whose layers two ranks share, with sequence parallelism or without."""

from pathlib import Path

import paddle
import pytest
import ranks
from fused_models.formers import BY_NAME
from paddleformers.nn.pp_model import RMSNormPipe

from llm_npu.models.families import model_class
from llm_npu.models.paddleformers.vision_language import FAMILIES as RECORDS
from llm_npu.surgery import apply_fused_kernels

PROGRAM = Path(__file__).with_name("tensor_parallel_program.py")
NORMS_OF_HEADS = Path(__file__).with_name("norms_of_heads_program.py")
VISION = Path(__file__).with_name("vision_tensor_parallel_program.py")
NAMES = (
    "deepseek-v3",
    "qwen3",
    "llama-gqa",
    "qwen2",
    "qwen3-moe",
    "ernie4.5",
    "ernie4.5-moe",
    "many experts",
)
CASES = [(name, kind) for name in NAMES for kind in ("parallel", "sequence")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_two_ranks_give_what_one_process_gives(name, kind, tmp_path):
    """Unfused and fused. How far roundings take it is measured, by one process with other roundings."""
    for report in ranks.run(PROGRAM, 2, tmp_path, name, kind):
        assert not any(report["beyond"].values())
        assert {"flash_attention", "rms_norm", "add_rms_norm", "rotary_mul", "swiglu"} <= set(report["ran"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "patch", "wrong"),
    [
        ("qwen3", "parallel", "fix_norms_of_heads", ("q_norm.weight", "k_norm.weight")),
        ("qwen3-moe", "parallel", "fix_norms_of_heads", ("q_norm.weight", "k_norm.weight")),
        ("qwen3-moe", "sequence", "fix_qwen3_moe_last_norm", ("model.norm.weight",)),
        ("deepseek-v3", "sequence", "fix_routers_and_experts", ("gate.weight", "_proj.weight")),
        ("deepseek-v3", "sequence", "fix_rotated_key", ("kv_a_proj_with_mqa.weight", "weight")),
        ("deepseek-v3", "parallel", "fix_rotated_key", ("kv_a_proj_with_mqa.weight", "weight")),
    ],
)
def test_without_a_patch_these_gradients_are_parts(name, kind, patch, wrong, tmp_path):
    for report in ranks.run(PROGRAM, 2, tmp_path, name, kind, patch):
        for beyond in report["beyond"].values():
            assert any(key.endswith(wrong[0]) for key in beyond)
            assert all(key.endswith(wrong) for key in beyond)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parallel", "sequence"])
def test_the_norms_of_qwen3_vls_heads_get_the_gradients_of_all_heads(kind, tmp_path):
    for errors in ranks.run(NORMS_OF_HEADS, 2, tmp_path, kind):
        assert max(errors.values()) < 1e-5
    for errors in ranks.run(NORMS_OF_HEADS, 2, tmp_path, kind, "unpatched"):
        assert min(errors.values()) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parallel", "sequence"])
@pytest.mark.parametrize("family", RECORDS)
def test_two_ranks_share_the_text_model_of_a_vision_language_model(family, kind, tmp_path):
    """And PaddleOCR-VL's projector."""
    for errors in ranks.run(VISION, 2, tmp_path, family, kind):
        assert errors["split"] >= 10
        for run in ("unfused", "fused"):
            assert all(error < 3e-5 for error in errors[run].values()), errors[run]


@pytest.mark.slow
def test_without_its_patch_a_projector_gets_a_part_of_its_inputs(tmp_path):
    with pytest.raises(AssertionError, match="In operator matmul"):
        ranks.run(VISION, 2, tmp_path, "paddleocr_vl", "parallel", "fix_paddleocr_vl_shards")


@pytest.mark.slow
def test_without_its_patch_deepstack_features_get_a_part_of_their_gradients(tmp_path):
    patch = "fix_qwen3_vl_deepstack_gradients"
    for errors in ranks.run(VISION, 2, tmp_path, "qwen3_vl", "sequence", patch):
        for run in ("unfused", "fused"):
            wrong = {name for name, error in errors[run].items() if error > 1e-2}
            assert any("deepstack_merger_list" in name for name in wrong), errors[run]
            assert all(name.startswith("model.visual.") for name in wrong), wrong


@pytest.mark.slow
def test_without_its_patch_a_process_has_not_the_heads_of_all(tmp_path):
    with pytest.raises(AssertionError, match="The 'shape' in ReshapeOp is invalid"):
        ranks.run(PROGRAM, 2, tmp_path, "deepseek-v3", "parallel", "fix_heads")


@pytest.mark.parametrize("name", ["llama", "deepseek-v3"])
def test_the_norm_of_a_pipelines_last_stage(name):
    """It gets what the stage before passes on: hidden states, and masks and positions beside them."""
    config = BY_NAME[name].build().config
    stage_norm = model_class(config.model_type, in_stages=True)._rms_norm_pipe_cls or RMSNormPipe
    norm = stage_norm(config=config, hidden_size=config.hidden_size, norm_eps=config.rms_norm_eps)
    x = paddle.randn([2, 3, config.hidden_size])
    expected = norm((x, x))
    report = apply_fused_kernels(paddle.nn.LayerList([norm]), ["rms_norm"])
    assert report.count("rms_norm") == 1
    for inputs in (x, (x,), (x, x)):
        assert float((norm(inputs) - expected).abs().max()) < 1e-6
