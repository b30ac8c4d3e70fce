"""What a run measures: operations and MFU, the clock of steps, communication, lines and pictures."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
import ranks
import tiny_models

import virtual_npu
from llm_npu.core import console, peak_flops
from llm_npu.training import metrics
from llm_npu.training import step as step_module
from llm_npu.training.metrics import Recorder, Utilization, flops_per_token
from llm_npu.training.step import EvaluationMean, FinishedStep, StepClock, StepTimes

pytestmark = pytest.mark.sampled

PROGRAM = Path(__file__).parent / "communication_program.py"


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral", "llama-tied"])
@pytest.mark.paddlenlp
def test_operations_are_those_of_every_matrix(name):
    model = tiny_models.build(name)
    matrices = [
        (path, parameter.size)
        for path, parameter in model.named_parameters()
        if parameter.ndim == 2 and ("embed_tokens" not in path or name == "llama-tied")
    ]
    config = model.config
    attention = 12 * config.num_hidden_layers * config.hidden_size * 32
    assert flops_per_token(config, 32) == 6 * sum(size for _, size in matrices) + attention
    assert flops_per_token(config, 0) == flops_per_token(config, 32) - attention


@pytest.mark.paddlenlp
def test_flops_count_the_experts_that_a_token_is_routed_to():
    sizes = {
        "vocab_size": 100,
        "hidden_size": 10,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts_per_tok": 2,
    }
    attention = 2 * 10 * 10 + 2 * 10 * 5
    mixtral = SimpleNamespace(**sizes, intermediate_size=20, num_local_experts=8)
    layer = attention + 8 * 10 + 2 * 3 * 10 * 20
    assert flops_per_token(mixtral, 0) == 6 * (3 * layer + 1000)
    qwen2 = SimpleNamespace(
        **sizes,
        intermediate_size=99,
        num_experts=8,
        moe_intermediate_size=20,
        shared_expert_intermediate_size=30,
    )
    layer += 10 + 3 * 10 * 30
    assert flops_per_token(qwen2, 0) == 6 * (3 * layer + 1000)


@pytest.mark.paddlenlp
def test_under_lora_frozen_weights_get_no_gradient():
    config = tiny_models.build("llama").config
    weights = flops_per_token(config, 0) / 6
    assert flops_per_token(config, 0, trained=500) == 4 * (weights + 500) + 2 * 500


def test_a_peak_is_a_number_a_card_or_measured():
    assert peak_flops.stated("312.5") == 312.5 and peak_flops.stated("measured") is None
    for name, card in peak_flops.PEAKS.items():
        assert peak_flops.stated(name) == card.tflops and "https://" in card.source
        assert peak_flops.stated(name, "float16") == card.fp16
    assert peak_flops.stated("ascend910b2", "float16") == 376 > peak_flops.stated("ascend910b2")
    for text, words in (
        ("ascend910b", "did you mean ascend910b"),
        ("0", "--peak_tflops is 0"),
        ("inf", "--peak_tflops is inf"),
        ("nan", "--peak_tflops is nan"),
    ):
        with pytest.raises(ValueError, match=words):
            peak_flops.stated(text)


def test_utilization_is_a_share_of_all_devices():
    assert Utilization(per_token=2e9, peak=1e12, devices=2, source="").of(500) == 0.5


def test_the_measured_peak_draws_nothing(device):
    paddle.seed(1)
    expected = paddle.rand([4]).tolist()
    paddle.seed(1)
    assert 1e6 < metrics.measured_flops("float32") < 1e18
    assert paddle.rand([4]).tolist() == expected


class Ticks:
    """A clock that shows what it is set to."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(step_module, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def __call__(self, event, seconds: float) -> None:
        self.now += seconds
        event(None, None, None)


def test_the_clock_tells_waits_for_data_from_work(monkeypatch):
    after = Ticks(monkeypatch)
    clock = StepClock()
    after(clock.on_epoch_begin, 5)
    after(clock.on_load_data_end, 2)  # the first batch
    after(clock.on_step_begin, 0)
    after(clock.on_substep_end, 10)
    after(clock.on_load_data_end, 3)  # the second
    after.now += 20
    assert clock.take() == StepTimes(step=35, data=5, communication=0, exposed=0)
    after(clock.on_step_end, 0)
    after(clock.on_save, 100)  # belongs to no step
    after(clock.on_load_data_end, 50)  # skipped by --skip_data_intervals
    after(clock.on_load_data_end, 4)
    after(clock.on_step_begin, 0)
    after.now += 6
    assert clock.take() == StepTimes(step=10, data=4, communication=0, exposed=0)


def test_a_step_is_as_long_as_its_slowest_process():
    rows = paddle.to_tensor(
        [[1.0, 10, 100, 0, 3, 0, 5.0, 1.0, 2.0, 1.0], [3.0, 30, 50, 2, 3, 1, 4.0, 2.0, 4.0, 3.0]],
        dtype="float64",
    ).numpy()
    step = FinishedStep.of(rows, data_ranks=2)
    assert (step.loss, step.tokens, step.memory, step.signal, step.grad_norm) == (2.0, 40, 100, 2, 3.0)
    assert step.times == StepTimes(5.0, 2.0, 3.0, 2.0)
    assert step.figures == {} and step.skipped  # also if one process alone found the bad number
    more = FinishedStep.of(np.hstack([rows, [[0.25], [0.75]]]), 2, ("rewards/margins",))
    assert more.figures == {"rewards/margins": 0.5} and more.times == step.times


@pytest.mark.filterwarnings("error")
def test_ranks_without_a_figure_do_not_count():
    """A pipeline stage without mixtures has no share of dropped tokens."""
    rows = np.hstack([np.ones([2, 10]), [[0.25, np.nan], [np.nan, np.nan]]])
    some, none = FinishedStep.of(rows, 2, ("some", "none")).figures.values()
    assert some == 0.25 and np.isnan(none)
    mean = EvaluationMean()
    mean.add(1.0, [0.5, np.nan], weight=3)
    mean.add(2.0, [np.nan, np.nan], weight=1)
    mean.add(9.0, [9.0, 9.0], weight=0)
    assert mean.over_all_ranks(3) == pytest.approx([1.25, 0.5, np.nan], nan_ok=True)
    assert EvaluationMean().over_all_ranks(2) == pytest.approx([np.nan, np.nan], nan_ok=True)
    mean.add(np.nan, [0.5, 0.5], weight=1)  # a diverged model
    assert np.isnan(mean.over_all_ranks(3)[0])


def recorder(tmp_path, utilization=None):
    new_recorder = Recorder(console.Display(bar=False), utilization)
    optimizer = SimpleNamespace(get_lr=lambda: 1e-3)
    arguments = SimpleNamespace(output_dir=tmp_path, logging_steps=1)
    new_recorder.on_train_begin(arguments, SimpleNamespace(global_step=0, max_steps=3), None)
    for number in (1, 2, 3):
        new_recorder.on_step_begin(None, None, None, optimizer=optimizer)
        times = StepTimes(2.0, 0.5, 0.0, 0.0)
        new_recorder.step = FinishedStep(5.0 / number, 1000 * number, 2**20, times, grad_norm=float(number))
        new_recorder.on_step_end(None, SimpleNamespace(global_step=number), None)
    return new_recorder


def test_records_lines_and_pictures(tmp_path, capsys):
    of_step = recorder(tmp_path, Utilization(1e9, 1e12, 1, "as given"))
    last = metrics.read(tmp_path / metrics.FILE)[-1]
    assert last == of_step.records[-1]
    assert last["tokens_per_s"] == 1500 and last["mfu"] == 1.5 and last["data_s"] == 0.5
    assert of_step.shares() == {"data": 0.25} and of_step.tokens_per_s() == 1000
    assert of_step.peak_memory() == 2**20
    (line,) = (
        line_of_step
        for line_of_step in capsys.readouterr().out.splitlines()
        if line_of_step.startswith("step 2/3: ")
    )
    assert line == (
        "step 2/3: loss 2.5000  lr 1.00e-03  norm 2.00  1,000 tokens/s  MFU 100.0%  data 25%  1 MiB"
    )
    baseline = metrics.Baseline(math.log(512), "guessing", "ln(vocabulary)", "nats per token")
    metrics.plot_loss(of_step, baseline, tmp_path / "loss.png")
    metrics.plot_run(of_step, tmp_path / "metrics.png")
    for name in ("loss.png", "metrics.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_communication_is_timed(tmp_path):
    latency, calls = 20_000, 5  # microseconds
    reports = ranks.run(PROGRAM, 2, tmp_path, calls, VIRTUAL_NPU_LINK_US=str(latency))
    least = calls * latency * 1e-6
    for report in reports:
        assert report["before"] == [0.0, 0.0]
        # Waited for at once, a collective holds the program up from the call to its end.
        assert report["waited"][0] >= least and report["waited"][1] > 0
        # Carried out by the caller itself: all of it is exposed.
        assert report["own"][0] >= least and report["own"][1] >= least


def test_one_process_does_not_communicate():
    before = virtual_npu.communication_time()
    assert float(paddle.ones([4]).sum()) == 4.0
    assert virtual_npu.communication_time() == before
    time = virtual_npu.CommunicationTime
    assert time(3.0, 2.0).since(time(1.0, 0.5)) == (2.0, 1.5)
