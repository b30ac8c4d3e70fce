"""Programs for paddle.inference, run in processes of their own: on npu and on the CPU place."""

import json

import numpy as np
import pytest
from tiny_models import FAMILIES, POSITIONS, VOCABULARY, build, logits_of, prompts

from llm_npu.inference import export
from llm_npu.models import weights
from llm_npu.surgery import apply_fused_kernels
from llm_npu.surgery.apply import applied_kernels

IDS = np.array(prompts(12, 12))
# Other lengths than any that was seen at the export.
SHORT = IDS[:1, :5]
RUN = """
import sys
import numpy as np
from llm_npu.inference import export

predictor = export.load(sys.argv[1], sys.argv[2])
np.savez(sys.argv[3], long=predictor(np.load(sys.argv[4])), short=predictor(np.load(sys.argv[4])[:1, :5]))
assert not any(name.split(".")[0] == "paddlenlp" for name in sys.modules)
"""


@pytest.fixture
def run_exported(run_python, tmp_path):
    """A function: the logits of both batches from the program in ``folder`` on ``device``."""

    def run(folder, device):
        np.save(tmp_path / "ids.npy", IDS)
        done = run_python("-c", RUN, folder, device, tmp_path / "logits.npz", tmp_path / "ids.npy")
        assert done.returncode == 0, done.stderr
        return np.load(tmp_path / "logits.npz")

    return run


def fused_operators(folder) -> set[str]:
    """The operators of this project, and of the plugin, in the program."""
    text = (folder / export.PROGRAM).read_text()
    names = (
        "pf_flash_attention",
        "pf_rms_norm",
        "pf_swiglu",
        "pf_rotary",
        "flash_attention_npu",
        "rms_norm_npu",
    )
    return {name for name in names if name in text}


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [FAMILIES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES[1:])]
)
def test_outputs_are_equal_on_both_devices(run_exported, tmp_path, on_npu, family):
    model = build(family)
    folder = export.export(model, tmp_path / "served")
    assert not applied_kernels(model)
    assert {"pf_flash_attention", "pf_rms_norm", "pf_swiglu"} <= fused_operators(folder)
    apply_fused_kernels(model)
    for device in ("npu", "cpu"):
        outputs = run_exported(folder, device)
        for name, ids in (("long", IDS), ("short", SHORT)):
            expected = logits_of(model, ids)
            assert outputs[name].dtype == np.float32
            # the order of fp32 sums of up to 96 terms may differ, a dozen times in a row
            assert np.abs(outputs[name] - expected).max() < 2**-24 * 34 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "ascend"])
def test_a_checkpoint_in_bfloat16(run_exported, run_python, tmp_path, on_npu, backend):
    model = build("llama", hidden_size=256, dtype="bfloat16")  # head size 64, for the plugin's fused_rope
    (tmp_path / "checkpoint").mkdir()
    weights.save(model, tmp_path / "checkpoint")
    shape = None if backend == "native" else (3, 16)
    folder = export.export(tmp_path / "checkpoint", tmp_path / "served", backend=backend, shape=shape)
    assert ("pf_flash_attention" in fused_operators(folder)) == (backend == "native")
    apply_fused_kernels(model)
    expected = logits_of(model, IDS)
    logits = run_exported(folder, "npu")["long"]
    assert np.abs(logits - expected).max() < 2**-8 * np.abs(expected).max()
    done = run_python("-c", f"from llm_npu.inference import export; export.load({str(folder)!r}, 'cpu')")
    assert "export it with" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_mode_and_the_kernels_of_a_model_stay(tmp_path, on_npu):
    model = build("llama")
    model.train()  # which Paddle 3.0 returns nothing of
    apply_fused_kernels(model, ["attention", "rms_norm"])
    folder = export.export(model, tmp_path / "served")
    assert applied_kernels(model) == ["attention", "rms_norm"] and model.training
    assert fused_operators(folder) == {"pf_flash_attention", "pf_rms_norm"}


@pytest.mark.slow
def test_what_is_refused(tmp_path, on_npu):
    model = build("llama")
    with pytest.raises(ValueError, match="choose a new folder"):
        export.export(model, tmp_path)
    with pytest.raises(ValueError, match=r"backend is 'cuda'; accepted: native, ascend"):
        export.export(model, tmp_path / "new", backend="cuda")
    with pytest.raises(ValueError, match=r"dtype .*checkpoint folder"):
        export.export(model, tmp_path / "new", dtype="float32")
    with pytest.raises(ValueError, match=r"backend='ascend' .*shape"):
        export.export(model, tmp_path / "new", backend="ascend")
    with pytest.raises(ValueError, match=rf"accepted: .*, 1 to {POSITIONS}"):
        export.export(model, tmp_path / "new", shape=(1, POSITIONS + 1))
    with pytest.raises(
        ValueError, match=r"backend='ascend'. flash_attention: .*\n.*float32"
    ):  # flash_attention_npu takes 16-bit types only
        export.export(model, tmp_path / "new", backend="ascend", shape=(1, 16))
    assert not (tmp_path / "new").exists() and not applied_kernels(model)
    with pytest.raises(ValueError, match=r"no program of llm_npu.inference.export"):
        export.load(tmp_path)


@pytest.mark.slow
def test_bad_tokens(tmp_path, on_npu):
    model = build("llama")
    predictor = export.load(export.export(model, tmp_path / "served"), "npu")
    assert json.loads((tmp_path / "served" / export.ABOUT).read_text()) == predictor.about
    for ids in ([1, 2], np.zeros([1, 0], np.int64), np.zeros([1, POSITIONS + 1], np.int64)):
        with pytest.raises(ValueError, match=rf"\[B, T\], rows of 1 to {POSITIONS} tokens"):
            predictor(ids)
    for token in (-1, VOCABULARY):
        with pytest.raises(ValueError, match=rf"{token}; accepted: 0 to {VOCABULARY - 1}"):
            predictor([[1, token]])
    narrow = export.load(export.export(model, tmp_path / "narrow", shape=(2, 8)), "npu")
    with pytest.raises(ValueError, match=r"\[B, T\], .* 2 rows of 1 to 8 tokens"):
        narrow([[1], [1], [1]])


@pytest.mark.slow
def test_paddles_own_way_to_load_a_program(run_python, tmp_path, on_npu):
    """``paddle.jit.load`` in a process that calls ``load_operators``, and what it says without."""
    folder = export.export(build("llama"), tmp_path / "served")
    program = "import paddle, paddle_fused, sys\nif sys.argv[2] == 'yes': paddle_fused.load_operators()\n"
    program += "print(paddle.jit.load(sys.argv[1])(paddle.to_tensor([[5, 6]])).numpy().shape)"
    path = folder / "model"
    done = run_python("-c", program, path, "yes")
    assert done.stdout.split() == ["(1,", "2,", f"{VOCABULARY})"], done.stderr
    assert run_python("-c", program, path, "no").returncode != 0
