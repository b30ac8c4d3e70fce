"""The models that the planner knows beside the script's presets."""

import time

import plans
import pytest

from llm_npu.core.errors import UserError
from llm_npu.plan import __main__ as command
from llm_npu.plan.layout import Layout
from llm_npu.plan.memory_model import memory
from llm_npu.plan.shape import ModelShape
from llm_npu.plan.step_model import program

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("qwen2.5-72b", 72.7, 72.7),
        ("llama3.1-405b", 405.9, 405.9),
        ("qwen3-8b", 8.2, 8.2),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235.1, 22.2),
        ("ernie-4.5-300b-a47b", 298.6, 47.1),
        ("ernie-4.5-21b-a3b", 21.8, 3.35),
        ("deepseek-v3", 671.0, 37.6),
    ],
)
def test_the_planner_knows_more_models_than_the_script(name, billions, active):
    """Published: 72.7, 405, 8.2, 30.5 with 3.3 a token, 235 with 22, 300 with 47, 21 with 3, 671 with 37."""
    shape = ModelShape.of(name)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.002)
    idle = shape.num_experts - shape.experts_per_token
    mixed = shape.num_hidden_layers - shape.dense_layers
    rest = mixed * idle * 3 * shape.hidden_size * shape.intermediate_size
    assert (shape.parameters - rest) / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.paddlenlp  # PaddleFormers has a preset of this model
def test_a_model_may_have_its_publisher_s_name(tmp_path, monkeypatch):
    assert ModelShape.of("Qwen/Qwen3-8B").name == "qwen3-8b"
    assert ModelShape.of("deepseek-ai/DeepSeek-V3").num_experts == 256
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-32b").mkdir()
    plans.model(tmp_path / "qwen3-32b")
    assert ModelShape.of("qwen3-32b").num_hidden_layers == 4  # a directory is read


def test_the_first_layers_of_an_moe_model_are_dense():
    shape = ModelShape.of("deepseek-v3")
    layout = Layout(cards=61, pipeline_parallel_degree=61)
    counts = [sum(memory.weights(shape, layout, stage)) for stage in range(61)]
    tables = 2 * shape.vocab_size * shape.hidden_size + shape.hidden_size
    assert sum(counts) == shape.parameters
    assert counts[1] == counts[2] == shape.dense.layer_parameters < counts[3] == shape.layer_parameters
    assert counts[0] + counts[-1] == shape.dense.layer_parameters + shape.layer_parameters + tables
    stages = program.micro_batch(shape, layout, 2), program.micro_batch(shape, layout, 3)
    experts = [any(operation.name.startswith("experts") for operation in operations) for operations in stages]
    assert experts == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cards"), [("qwen3-235b-a22b", "256"), ("deepseek-v3", "512")])
def test_large_moe_models_are_searched_in_a_minute_of_processor_time(name, cards):
    argv = ["--model_name_or_path", name, "--cards", cards, "--global_batch_size", "1024", "--search"]
    start = time.process_time()
    assert command.planned(argv)[1].fits
    assert time.process_time() - start < 60


def test_stages_of_an_moe_model_are_one_chunk():
    argv = ["--model_name_or_path", "qwen3-235b-a22b", "--cards", "256", "--global_batch_size", "1024"]
    argv += ["--pipeline_parallel_degree", "32", "--virtual_pp_degree", "4"]
    with pytest.raises(UserError, match="--virtual_pp_degree 4 was not tested with MoE models"):
        command.planned(argv)
