"""Programs of several ranks, exported and run in processes of their own."""

import json
from pathlib import Path

import numpy as np
import predicting_rank
import pytest
import ranks
from tiny_models import build, fields_of, logits_of, prompts

from llm_npu.__main__ import main
from llm_npu.inference import export
from llm_npu.models import weights
from llm_npu.surgery import apply_fused_kernels

PROGRAM = Path(predicting_rank.__file__)
TWO = ("--nproc", "2", "--tensor_parallel_degree", "2")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen2-tied"])
def test_logits_of_two_ranks_are_those_of_one(run_python, tmp_path, on_npu, kind):
    ids, model = np.array(prompts(12, 12)), build(kind)
    (tmp_path / "checkpoint").mkdir()
    weights.save(model, tmp_path / "checkpoint")
    np.save(tmp_path / "ids.npy", ids)
    checkpoint, served = tmp_path / "checkpoint", tmp_path / "served"
    shape = ("--shape", ids.shape[0] + 1, ids.shape[1] + 4)
    done = run_python("-m", "llm_npu", "export", checkpoint, served, *TWO, *shape)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"written {served}"
    reports = ranks.run(PROGRAM, 2, tmp_path / "run", served, tmp_path / "ids.npy")
    apply_fused_kernels(model)
    expected = logits_of(model, ids)
    for report in reports:
        # the order of fp32 sums of up to 96 terms differs, a dozen times in a row
        actual = np.array(report["logits"], np.float32)
        assert np.abs(actual - expected).max() < 2**-24 * 34 * np.abs(expected).max()
    alone = run_python("-c", f"from llm_npu.inference import export; export.load({str(served)!r})")
    assert all(key in alone.stderr.splitlines()[-1] for key in ("2 ranks", "1 processes"))
    with pytest.raises(ValueError, match="programs for 2 ranks"):
        export.load(served)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nproc", "2", "--shape", "1", "8"], "there are 2 processes"),
        ([*TWO], "set --shape"),
        (["--backend", "ascend"], "--backend ascend "),
        (["--backend", "cuda"], "accepted: native, ascend"),
        (["--shape", "0", "8"], "--shape"),
        (["--nproc", "3", "--tensor_parallel_degree", "3", "--shape", "1", "8"], "has num_attention_heads 4"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, words, sentence):
    (tmp_path / "config.json").write_text(json.dumps(fields_of("llama")))
    assert main(["export", str(tmp_path), str(tmp_path / "served"), *words]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.count("\n") == 1
    assert main(["export", str(tmp_path), str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
