"""Recordings of a step: on disk, compared with each other, and with perturbed rounding."""

import json
from contextlib import nullcontext

import numpy as np
import paddle
import pytest
import tiny_models

from llm_npu.config.formats import dumped_steps
from llm_npu.core import program
from llm_npu.device import Device
from llm_npu.numerics import dumped, options, reproducible
from llm_npu.numerics.__main__ import main
from llm_npu.numerics.compare_backends import Choices, other_roundings
from llm_npu.numerics.comparison import compare
from llm_npu.numerics.recording import recording
from llm_npu.surgery import apply_fused_kernels

pytestmark = pytest.mark.sampled


def recorded(model, seed: int | None = None):
    """A forward and backward pass of ``model`` on two rows; with other roundings for a ``seed``."""
    ids = paddle.to_tensor(np.arange(24).reshape(2, 12))
    roundings = nullcontext() if seed is None else other_roundings(model, seed)
    with roundings, recording(model) as recording_of_step:
        model(input_ids=ids, labels=ids)[0].backward()
    recording_of_step.add_weight_gradients(model)
    model.clear_gradients()
    return recording_of_step


@pytest.fixture
def model():
    return tiny_models.build("llama", "bfloat16").train()


def test_a_recording_has_every_layer_in_its_order(model):
    recorded_values = recorded(model)
    names = list(recorded_values)
    outputs = [name.removeprefix("output/") for name in names if name.startswith("output/")]
    assert outputs[0] == "llama.embed_tokens"
    assert outputs.index("llama.layers.1.mlp") < outputs.index("llama.norm") < outputs.index("lm_head")
    assert outputs.index("llama.layers.0.mlp") < outputs.index("llama.layers.1.mlp")
    gradients = [name.removeprefix("gradient/") for name in names if name.startswith("gradient/")]
    assert (
        gradients.index("lm_head") < gradients.index("llama.norm") and gradients[-1] == "llama.embed_tokens"
    )
    weights = {name.removeprefix("weight gradient/") for name in names if name.startswith("weight")}
    assert weights == {name for name, _ in model.named_parameters()}
    assert recorded_values["output/lm_head"].dtype == np.uint16  # bfloat16
    plain = recorded(model)
    # hooks left nothing behind
    assert all(recorded_values[name].tobytes() == plain[name].tobytes() for name in names)


def test_other_roundings_are_small_repeatable_and_gone_afterwards(model):
    plain, other, again, third = (recorded(model, seed) for seed in (None, 1, 1, 2))
    assert all(other[name].tobytes() == again[name].tobytes() for name in other)
    assert other["output/lm_head"].tobytes() != third["output/lm_head"].tobytes()
    first = dumped.as_float64(plain["output/llama.layers.0.input_layernorm"])
    moved = dumped.as_float64(other["output/llama.layers.0.input_layernorm"])
    assert 0 < np.abs(moved / first - 1).max() <= 2 * 2.0**-7
    assert compare(recorded(model), plain).differences[-1].same_bits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fused_and_unfused_differ_by_rounding_only(dtype):
    model = tiny_models.build("llama", dtype)
    model.train()
    unfused, *noise_floors = (recorded(model, seed) for seed in (None, 1, 2))
    apply_fused_kernels(model)
    comparison = compare(recorded(model), unfused, noise_floors)
    assert not comparison.beyond_rounding, "\n".join(comparison.lines())
    assert not all(difference.same_bits for difference in comparison.differences)
    assert "no difference exceeds rounding" in comparison.lines()[-1]

    mlp = model.llama.layers[1].mlp
    forward = mlp.forward
    mlp.forward = lambda x: forward(x) * 1.2
    first = compare(recorded(model), unfused, noise_floors).beyond_rounding[0]
    assert first.place == "the output of llama.layers.1.mlp" and first.share > 1


def test_the_rule():
    ones = np.ones((2, 3), np.float32)
    off = ones + np.float32(1e-3)
    (same,) = compare({"output/a": ones}, {"output/a": ones.copy()}).differences
    assert same.same_bits and not same.exceeds and same.share == 0
    (apart,) = compare({"output/a": off}, {"output/a": ones}).differences
    assert apart.exceeds and apart.distance == pytest.approx(1e-3, rel=1e-3)
    many = np.ones((50, 60), np.float32)
    (explained,) = compare(
        {"output/a": many + np.float32(1e-3)}, {"output/a": many}, [{"output/a": many - 6e-4}]
    ).differences
    assert not explained.exceeds and explained.allowed == pytest.approx(1.2e-3, rel=1e-3)
    for bad in (np.full((2, 3), np.nan, np.float32), np.full((2, 3), np.inf, np.float32), ones[:1]):
        (difference,) = compare({"output/a": bad}, {"output/a": ones}).differences
        assert difference.exceeds
    lines = compare({"output/a": off, "gradient/b": ones}, {"output/a": ones}).lines()
    assert lines[0] == "1 tensors compared, 0 bit-identical"
    assert lines[1].endswith(": gradient/b")
    assert lines[2].startswith(
        "first difference beyond rounding: the output of a (float32): error 1.00e-03 of 1.00e+00"
    )


def test_a_loss_in_float32_differs_as_what_it_is_computed_from():
    """Without noise floors: by roundings of bfloat16, if layers before it have that dtype."""
    layer = {"output/layer": np.full(4, 0x3F80, np.uint16)}  # 1 in bfloat16
    loss, other = ({"output/loss": np.full(1, value, np.float32)} for value in (6.28, 6.29))
    assert not compare(layer | other, layer | loss).beyond_rounding
    assert compare(other | layer, loss | layer).beyond_rounding
    far = {"output/loss": np.full(1, 8, np.float32)}
    assert compare(layer | far, layer | loss).beyond_rounding


def test_a_noise_floor_of_few_elements_may_be_close_by_chance():
    """Two correct ways, that differ from the truth by chance, hardly ever part; a wrong one does."""
    draw = np.random.default_rng(0)
    for count in (1, 2, 5, 16):
        parted = 0
        for _ in range(500):
            first, other, *noise_floors = draw.normal(1.0, 1e-2, (4, count)).astype(np.float32)
            others = [{"output/a": noise_floor} for noise_floor in noise_floors]
            parted += bool(compare({"output/a": first}, {"output/a": other}, others).beyond_rounding)
        assert parted <= 1, count
        wrong = {"output/a": first + np.float32(9)}
        assert compare(wrong, {"output/a": other}, [{"output/a": first}]).beyond_rounding


def test_experts_are_chosen_as_in_the_first_run():
    scores = paddle.to_tensor([[0.5, 0.3, 0.2], [0.1, 0.4, 0.5]])
    near = paddle.to_tensor([[0.3, 0.2, 0.5], [0.1, 0.5, 0.4]], stop_gradient=False)
    original, choices = paddle.topk, Choices()
    with choices.recorded():
        _, first = paddle.topk(scores, 2, axis=-1)
    for _ in range(2):
        with choices.replayed():
            values, indices = paddle.topk(near, k=2)
        assert indices.tolist() == first.tolist() == [[0, 1], [2, 1]]
        np.testing.assert_allclose(values.numpy(), [[0.3, 0.2], [0.4, 0.5]], rtol=1e-6)
        assert (choices.count, choices.otherwise) == (2, 1)
    values.sum().backward()
    assert near.grad.tolist() == [[1, 1, 0], [0, 1, 1]]
    with pytest.raises(ValueError, match="experts"), choices.replayed():
        for _ in range(2):
            paddle.topk(near, 2)
    with pytest.raises(ValueError, match="experts"), choices.replayed():
        paddle.topk(near, 1)
    assert paddle.topk is original


def test_dumps_are_read_as_written(model, tmp_path):
    recorded_values = recorded(model)
    options.write(recorded_values, tmp_path / "step-10" / "rank-0")
    options.write(recorded_values, tmp_path / "step-9" / "rank-0")
    back = dumped.dumps(tmp_path)
    assert list(back) == ["step-9/rank-0", "step-10/rank-0"]
    for dump in back.values():
        assert list(dump) == list(recorded_values)
        assert all(dump[name].tobytes() == recorded_values[name].tobytes() for name in recorded_values)
        assert all(dump[name].dtype == recorded_values[name].dtype for name in recorded_values)
    assert list(dumped.dumps(tmp_path / "step-9" / "rank-0")) == ["."]
    with pytest.raises(ValueError, match="contains no dump of --dump_tensors"):
        dumped.dumps(tmp_path / "nowhere")


@pytest.mark.slow
def test_the_command_compares_dumps(run_python, tmp_path, capsys, monkeypatch):
    numbers = {"output/a": np.ones(4, np.float32), "weight gradient/w": np.ones(2, np.uint16)}
    options.write(numbers, tmp_path / "one")
    options.write(numbers, tmp_path / "same")
    options.write({**numbers, "output/a": np.full(4, 2, np.float32)}, tmp_path / "other")
    command = ("-m", "llm_npu.numerics", "compare")
    other = run_python(*command, "other", "one", "--json", "found.json", cwd=tmp_path)
    assert other.returncode == 1 and "first difference beyond rounding: the output of a" in other.stdout
    rows = json.loads((tmp_path / "found.json").read_text())["."]
    assert [(row["name"], row["parts"]) for row in rows] == [("output/a", True), ("weight gradient/w", False)]
    monkeypatch.chdir(tmp_path)
    assert program.run(main, ["compare", "one", "same"]) == 0
    assert "2 tensors compared, 2 bit-identical" in capsys.readouterr().out
    assert program.run(main, ["compare", "one", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("error: nowhere ")


def test_steps_are_one_or_a_range():
    assert list(dumped_steps("3")) == [3] and list(dumped_steps("2:4")) == [2, 3, 4]
    for text in ("0", "4:2", "a", "1:", "1-2", "", "-1"):
        with pytest.raises(ValueError, match="--dump_tensors"):
            dumped_steps(text)


def test_deterministic_sets_what_libraries_read():
    virtual, card = Device("npu", "virtual", ""), Device("npu", "card", "")
    assert reproducible.prepare(False, virtual, environ := {}) == {} and environ == {}
    set_now = reproducible.prepare(True, virtual, environ := {})
    assert set_now == environ and "MKL_CBWR" in environ and "HCCL_DETERMINISTIC" not in environ
    assert "npu_deterministic" in reproducible.prepare(True, card, {})
    with pytest.raises(ValueError, match=r"HCCL_DETERMINISTIC=true, .* false"):
        reproducible.prepare(True, card, {"HCCL_DETERMINISTIC": "false"})
