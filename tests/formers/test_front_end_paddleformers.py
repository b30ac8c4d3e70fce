"""``paddleformers-cli train`` on two virtual ranks: unmodified, and by ``llm-npu formers``."""

import shutil
import sys
from pathlib import Path

import front_ends
import pytest
from front_ends import assert_tracks, configuration, finished, train

pytestmark = pytest.mark.slow

UNMODIFIED = ("-m", "virtual_npu", Path(sys.executable).with_name("paddleformers-cli"))
*FUSED, _, _ = front_ends.of_page("train")  # its "train sft.yaml" is added by train()
ADDED, COMPLETE = front_ends.yaml_of_page()
# What runs of PaddleFormers 1.2.0 without CUDA; see with_own_norm for the RMSNorm.
UNFUSED = {"device": "npu", "_attn_implementation": "eager"}
OPERATORS = {"flash_attention", "rms_norm", "rotary_mul", "swiglu"}


def make_model(run_python, folder: Path, family: str) -> Path:
    done = run_python(front_ends.HERE / "make_tiny_model.py", folder, family)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def model(run_python, tmp_path_factory):
    return make_model(run_python, tmp_path_factory.mktemp("models") / "llama", "llama")


@pytest.mark.parametrize("stage", ["SFT", "PT", "DPO"])
def test_unmodified_then_fused(run_python, model, tmp_path, stage):
    plain = front_ends.with_own_norm(model, tmp_path / "plain")
    unfused = finished(
        *train(run_python, UNMODIFIED, tmp_path / "unfused", configuration(stage, plain, **UNFUSED))
    )
    reference = finished(
        *train(
            run_python,
            UNMODIFIED,
            tmp_path / "float32",
            configuration(stage, plain, **front_ends.FLOAT32, **UNFUSED),
        )
    )
    fused = finished(*train(run_python, FUSED, tmp_path / "fused", configuration(stage, model, **ADDED)))
    assert_tracks(fused.losses, unfused.losses, reference.losses)
    assert fused.losses[-1] < 0.9 * fused.losses[0]
    assert unfused.ran == [{}, {}]
    for rank in fused.ran:
        assert {operator for operator, _ in rank} == OPERATORS
        assert rank["rms_norm", "bfloat16"] == "ascend, rms_norm_npu"
        assert rank["rotary_mul", "bfloat16"] == "ascend, fused_rope"
        assert rank["flash_attention", "bfloat16"].startswith("ascend, flash_attention_npu, causal")


def test_the_published_family(run_python, tmp_path):
    """Qwen3, which only its patches let PaddleFormers import without CUDA."""
    model = make_model(run_python, tmp_path / "qwen3", "qwen3")
    fused = finished(*train(run_python, FUSED, tmp_path / "fused", configuration("SFT", model, **ADDED)))
    assert fused.losses[-1] < 0.9 * fused.losses[0]
    assert all({operator for operator, _ in rank} == OPERATORS for rank in fused.ran)


def test_the_complete_file_of_the_page(run_python, model, tmp_path):
    folder = tmp_path / "job"
    shutil.copytree(model, folder / "model")
    for file, part in (("train", "train"), ("dev", "eval")):
        shutil.copy(model / f"sft-{part}.jsonl", folder / f"{file}.jsonl")
    fused = finished(*train(run_python, FUSED, folder, COMPLETE))
    assert fused.losses[-1] < 0.9 * fused.losses[0]
    assert all({operator for operator, _ in rank} == OPERATORS for rank in fused.ran)
    assert list(folder.glob("checkpoint/**/*.safetensors"))


def test_tensor_parallel(run_python, model, tmp_path):
    """examples/config/sft/full_tp_pp.yaml, without the pipeline."""
    split = {"tensor_model_parallel_size": 2, "sequence_parallel": True, **ADDED}
    whole = finished(
        *train(
            run_python,
            FUSED,
            tmp_path / "whole",
            configuration("SFT", model, **ADDED, gradient_accumulation_steps=8),
            ASCEND_RT_VISIBLE_DEVICES="0",
        )
    )
    fused = finished(
        *train(
            run_python,
            FUSED,
            tmp_path / "split",
            configuration("SFT", model, gradient_accumulation_steps=8, **split),
        )
    )
    assert front_ends.distance(fused.losses, whole.losses) < front_ends.CEILING
    assert all({operator for operator, _ in rank} == OPERATORS for rank in fused.ran)


def test_a_job_of_one_rank_resumes(run_python, model, tmp_path):
    """From PaddleFormers' default format, flex_checkpoint."""
    half = front_ends.STEPS // 2
    content = configuration("SFT", model, **ADDED, save_steps=half)
    whole, logs = train(run_python, FUSED, tmp_path / "whole", content, ASCEND_RT_VISIBLE_DEVICES="0")
    expected = finished(whole, logs).losses
    content |= {"resume_from_checkpoint": str(tmp_path / f"whole/checkpoint/checkpoint-{half}")}
    done, logs = train(run_python, FUSED, tmp_path / "resumed", content, ASCEND_RT_VISIBLE_DEVICES="0")
    assert done.returncode == 0, done.stdout + done.stderr
    losses = front_ends.losses_by_step((logs / "workerlog.0").read_text())
    assert losses == dict(enumerate(expected[half:], start=half + 1))


@pytest.mark.parametrize(
    ("changes", "own_norm", "symptom"),
    [
        ({}, False, "The device should not be 'gpu'"),
        ({"device": "npu"}, False, "fused_rms_norm_ext` is not registered"),
        ({"device": "npu"}, True, "FLAGS_cudnn_deterministic"),
    ],
)
def test_what_the_published_file_needs(run_python, model, tmp_path, changes, own_norm, symptom):
    """Why the page says ``device: npu``, and why the published file runs with the prefix only."""
    if own_norm:
        model = front_ends.with_own_norm(model, tmp_path / "plain")
    done, _ = train(run_python, UNMODIFIED, tmp_path / "job", configuration("SFT", model, **changes))
    assert done.returncode != 0 and symptom in done.stdout + done.stderr
