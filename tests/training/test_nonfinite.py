"""A NaN that arises on one of two ranks: both skip the step, or both stop, and the layer is named."""

import math
from pathlib import Path

import paddle
import pytest
import ranks
import run_inputs

from llm_npu.training.nonfinite import Guard

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "nonfinite_program.py"
WHERE = "rank 1: the output of llama.layers.1.mlp.down_proj"


def runs(tmp_path_factory, *more: str) -> list[dict]:
    folder = tmp_path_factory.mktemp("nonfinite")
    words = run_inputs.words(run_inputs.inputs(folder))
    flags = (
        "--max_seq_length 32 --max_steps 4 --per_device_train_batch_size 2 --do_eval false --logging_steps 1"
    )
    return ranks.run(PROGRAM, 2, folder / "run", *words, *flags.split(), *more)


@pytest.fixture(scope="module")
def of_trainer(tmp_path_factory):
    return runs(tmp_path_factory)


@pytest.fixture(scope="module")
def of_auto_parallel(tmp_path_factory):
    return runs(tmp_path_factory, "--enable_auto_parallel")


@pytest.fixture(params=["of_trainer", pytest.param("of_auto_parallel", marks=pytest.mark.slow)])
def reports(request):
    return request.getfixturevalue(request.param)


def test_a_step_is_skipped_by_both(reports):
    assert [rank["skip"]["code"] for rank in reports] == [0, 0]
    losses = [record["loss"] for record in reports[0]["skip"]["steps"] if "loss" in record]
    assert len(losses) == 4 and losses[1] is None  # JSON has no NaN
    assert all(map(math.isfinite, (losses[0], *losses[2:])))  # no weight has become NaN
    for rank in reports:
        (line,) = (line for line in rank["skip"]["said"].splitlines() if "the step is skipped" in line)
        assert line.startswith("the loss is nan (") and WHERE in line


def test_gradients_that_are_not_finite_are_left_out(of_auto_parallel):
    """The loss of that step is finite, and those of all others."""
    results = of_auto_parallel
    for rank in results:
        assert rank["gradient"]["code"] == 0
        (line,) = (line for line in rank["gradient"]["said"].splitlines() if "the step is skipped" in line)
        assert line.startswith("the norm of the gradients is nan (rank 0: the gradient of llama.")
    losses = [record["loss"] for record in results[0]["gradient"]["steps"] if "loss" in record]
    assert len(losses) == 4 and all(map(math.isfinite, losses))
    norms = [record["grad_norm"] for record in results[0]["gradient"]["steps"] if "grad_norm" in record]
    assert len(norms) == 3 and all(map(math.isfinite, norms))  # of the steps that were made


def test_the_run_stops_on_both(reports):
    for rank in reports:
        assert "the loss is nan (" in rank["stop"]["error"] and WHERE in rank["stop"]["error"]
        assert "--nonfinite skip" in rank["stop"]["error"]


@pytest.mark.parametrize("choice", ["skip", "stop"])
def test_a_bad_norm_leaves_the_weights_alone(choice):
    weight = paddle.ones([2])
    weight.stop_gradient = False
    optimizer = paddle.optimizer.AdamW(
        0.1, parameters=[weight], grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0)
    )
    lines = []
    guard = Guard(choice, lambda: "here", lines.append)
    from llm_npu.patches.gradients import GradientNorm

    norm = GradientNorm(optimizer, guard.check_norm)
    guard.around(optimizer)
    (weight * paddle.to_tensor([float("inf"), 1.0])).sum().backward()
    if choice == "stop":
        with pytest.raises(ValueError, match=r"gradients is inf \(rank 0: here\)"):
            optimizer.step()
    else:
        optimizer.step()
        (line,) = lines
        assert "inf (rank 0: here)" in line and "skipped" in line
    assert weight.tolist() == [1.0, 1.0] and math.isinf(norm.take())
    optimizer.clear_grad()
    (weight * 3).sum().backward()
    optimizer.step()
    assert norm.take() == pytest.approx(3 * math.sqrt(2)) and weight[0] < 1
