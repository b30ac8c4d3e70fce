"""``--dump_tensors`` with sequence parallelism: the gradients of parameters that every rank has."""

import itertools

import numpy as np
import pytest
from small_runs import SCRIPT

from llm_npu.numerics import dumped


@pytest.mark.slow
def test_they_are_of_the_tokens_of_all_ranks(run_python, inputs, tmp_path):
    """Each rank has those of its own tokens, until a callback of the trainer sums them."""
    run = [*inputs("qwen3"), "--no_bf16", "--max_steps", "1", "--save_steps", "1", "--eval_steps", "1"]
    shared = ["--nproc", "2", "--tensor_parallel_degree", "2", "--sequence_parallel", "true"]
    for name, more in {"one": [], "two": shared}.items():
        dumped_to = ["--dump_tensors", "1", "--output_dir", tmp_path / name]
        done = run_python(SCRIPT, *run, *more, *dumped_to)
        assert done.returncode == 0, done.stderr
    of_one, two = (dumped.dumps(tmp_path / name / "tensors" / "step-1") for name in ("one", "two"))
    norms = [name for name in of_one["rank-0"] if name.startswith("weight gradient") and "norm" in name]
    assert norms
    for rank, name in itertools.product(("rank-0", "rank-1"), norms):
        np.testing.assert_allclose(two[rank][name], of_one["rank-0"][name], rtol=1e-3, atol=1e-5)
