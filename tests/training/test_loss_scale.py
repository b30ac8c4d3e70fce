"""The loss scale of fp16 beside float32 gradients: their norm, and steps whose gradients are infinite."""

import numpy as np
import paddle
import pytest
import run_inputs
from paddle.distributed.fleet.utils.mix_precision_utils import MixPrecisionLayer, MixPrecisionOptimizer
from places import ROOT
from run_inputs import OTHERS

from llm_npu.models import library
from llm_npu.patches.gradients import unscale_master_gradients
from llm_npu.training import metrics

SCALE, RATE = 1024.0, 0.5
TWO = ("--nproc", "2", "--per_device_train_batch_size", "1")


def stepped(inputs, unscale):
    """The weights [2, 1] after a step from 1 by SGD, of a loss that is the mean of x w; the next scale."""
    layer = paddle.nn.Linear(2, 1, bias_attr=False)
    layer.weight.set_value(paddle.ones([2, 1]))
    optimizer = paddle.optimizer.SGD(RATE, parameters=layer.parameters())
    layer = paddle.amp.decorate(layer, level="O2", dtype="float16")
    MixPrecisionLayer(layer, dtype="float16")
    scaler = paddle.amp.GradScaler(init_loss_scaling=SCALE, decr_every_n_nan_or_inf=1)
    if unscale:
        unscale_master_gradients(scaler)
    with paddle.amp.auto_cast(level="O2", dtype="float16"):
        loss = layer(paddle.to_tensor(inputs, "float16")).astype("float32").mean()
    scaler.scale(loss).backward()
    optimizer = MixPrecisionOptimizer(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return layer.weight.astype("float32").numpy(), float(scaler._scale)


@pytest.mark.usefixtures("on_npu")
def test_float32_gradients_lose_the_loss_scale():
    weights, scale = stepped([[0.5, -0.25]], unscale=True)
    assert np.array_equal(weights, [[0.75], [1.125]]) and scale == SCALE


@pytest.mark.usefixtures("on_npu")
def test_a_step_with_an_infinite_gradient_is_not_taken():
    weights, scale = stepped([[60000.0, 1.0]], unscale=True)  # times the loss scale: infinite in float16
    assert np.array_equal(weights, [[1], [1]]) and scale == SCALE / 2


@pytest.mark.usefixtures("on_npu")
def test_paddles_scaler_overlooks_float32_gradients():
    """When this fails, Paddle has mended it and llm_npu.patches can forget it."""
    assert np.array_equal(stepped([[0.5, -0.25]], unscale=False)[0], [[-255], [129]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["Llama", *(OTHERS if library.installed_or_none() == library.PADDLENLP else ())]
)
@pytest.mark.parametrize("split", [(), TWO], ids=["one", "two"])
def test_a_run_in_fp16_has_the_gradients_of_one_in_float32(run_python, tmp_path, split, model):
    inputs = run_inputs.words(run_inputs.inputs(tmp_path, **OTHERS.get(model, {})))
    run = [*inputs, "--max_seq_length", "32", "--max_steps", "3", "--save_steps", "3", "--do_eval", "false"]
    norms = {}
    for precision in ("--fp16", "--no_bf16"):
        out = tmp_path / precision
        more = ["--per_device_train_batch_size", "2", precision, *split, "--output_dir", out]
        done = run_python(ROOT / "scripts/run_llama_npu.py", *run, *more)
        assert done.returncode == 0, done.stderr
        norms[precision] = [record["grad_norm"] for record in metrics.read(out / metrics.FILE)[:3]]
    assert norms["--fp16"] == pytest.approx(norms["--no_bf16"], rel=0.02)
