"""ERNIE-4.5-MoE by scripts/run_llama_npu.py: its layers make up the gradients of the losses of routers."""

import pytest
import run_inputs
from small_runs import RUN, SCRIPT, SOURCES, fields

from llm_npu.training import metrics


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_loss_scale_of_fp16_does_not_remove_them(run_python, tmp_path, level):
    """With such a factor nearly all of the gradient is of these losses, which depend on the weights alone."""
    sizes = fields("ernie4_5_moe") | {"moe_orthogonal_loss_lambda": 1000.0}
    run = run_inputs.words(run_inputs.inputs(tmp_path, SOURCES, **sizes) | RUN)
    norms = {}
    for precision in ("--fp16", "--no_bf16"):
        out = tmp_path / precision
        more = ["--max_steps", "2", "--save_steps", "2", "--eval_steps", "2", "--output_dir", out]
        level_of = ["--fp16_opt_level", level] if precision == "--fp16" else []
        done = run_python(SCRIPT, *run, precision, *level_of, *more)
        assert done.returncode == 0, done.stderr
        norms[precision] = [record["grad_norm"] for record in metrics.read(out / metrics.FILE)[:2]]
    assert min(norms["--no_bf16"]) > 100
    assert norms["--fp16"] == pytest.approx(norms["--no_bf16"], rel=1e-3)
