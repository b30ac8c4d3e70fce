"""What the planner predicts on request, and this trainer does not run."""

import dataclasses

import pytest

from llm_npu.plan import __main__ as command
from llm_npu.plan import table
from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape
from llm_npu.plan.step_model import program

LLAMA = ModelShape.of("llama2-7b")


def test_context_parallelism_is_predicted_on_request():
    argv = ["--model_name_or_path", "llama3.1-8b", "--cards", "32", "--max_seq_length", "131072"]
    whole, cut = (
        command.planned([*argv, "--tensor_parallel_degree", "8", *more])[1]
        for more in ((), ("--context_parallel_degree", "4"))
    )
    assert cut.memory.peak_memory_bytes < whole.memory.peak_memory_bytes / 2
    assert cut.layout.data_parallel_degree == 1 and cut.time.communication["cp"] > 0
    text = table.write(cut)
    assert "this trainer does not run it yet" in text and "run_llama_npu.py" not in text
    found = command.planned(
        [*argv, "--context_parallel_degree", "4", "--global_batch_size", "32", "--search"]
    )[1]
    assert found.layout.context_parallel_degree == 4


# Paddle assigns whole weights, so that the fullest card has more than its share.
@pytest.mark.parametrize(("stack", "most"), [("mindspeed", 1.03), ("paddle", 1.2)])
def test_expert_parallelism_is_predicted_on_request(stack, most):
    argv = ["--model_name_or_path", "qwen3-235b-a22b", "--cards", "256", "--sharding", "stage1"]
    argv += ["--tensor_parallel_degree", "4", "--global_batch_size", "1024", "--stack", stack]
    whole, cut = (command.planned([*argv, *more])[1] for more in ((), ("--expert_parallel_degree", "16")))
    assert cut.memory.peak_memory_bytes < whole.memory.peak_memory_bytes / 3
    assert cut.time.communication["ep"] > 0
    share = 4 * cut.shape.parameters / 256
    assert share <= cut.memory.stages[0].moments[0].parts["master weights"] <= most * share
    text = table.write(cut)
    assert "expert 16" in text and "run_llama_npu.py" not in text


@pytest.mark.parametrize("stack", ["paddle", "mindspeed"])
def test_states_on_the_host_are_predicted_on_request(stack):
    argv = [
        "--model_name_or_path",
        "llama2-7b",
        "--cards",
        "8",
        "--global_batch_size",
        "64",
        "--stack",
        stack,
    ]
    argv += ["--sharding", "stage1"]
    here, host = (command.planned([*argv, *more])[1] for more in ((), ("--offload",)))
    weights = host.shape.parameters / 8
    saved = here.memory.peak_memory_bytes - host.memory.peak_memory_bytes
    assert saved == pytest.approx(12 * weights * 15 / 16, rel=0.1)
    seconds = host.time.step_time_s - here.time.step_time_s
    assert seconds == pytest.approx(24 * weights / 25.6e9, rel=0.01)
    text = table.write(host)
    assert "--offload: predicted only" in text and "run_llama_npu.py" not in text
    assert "the optimizer's states on the host" in text
    assert command.planned([*argv[:-2], "--offload", "--search"])[1].layout.offload


def test_json_has_no_arguments_for_what_the_script_does_not_run():
    argv = [
        "--model_name_or_path",
        "llama2-7b",
        "--cards",
        "8",
        "--sharding",
        "stage1",
        "--max_seq_length",
        "2048",
    ]
    assert command.as_json(command.planned(argv)[1])["plan"]["arguments"]
    answer = command.planned([*argv, "--context_parallel_degree", "8"])[1]
    assert command.as_json(answer)["plan"]["arguments"] is None


@pytest.mark.paddlenlp
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen2.5-7b", "this trainer cuts qwen2.5-7b into stages with PaddleFormers only"),
        ("mixtral-8x7b", "this trainer does not cut mixtral-8x7b into stages"),
        ("mistral-7b", "this trainer does not cut mistral-7b into stages"),
    ],
)
def test_pipelines_of_models_that_are_not_cut_are_predicted_on_request(name, words):
    argv = ["--model_name_or_path", name, "--cards", "32", "--global_batch_size", "256"]
    argv += ["--sharding", "stage1", "--recompute"]
    whole, cut = (command.planned([*argv, *more])[1] for more in ((), ("--pipeline_parallel_degree", "4")))
    assert cut.memory.peak_memory_bytes < whole.memory.peak_memory_bytes and cut.time.bubble > 0
    assert len(cut.memory.stages) > 1
    text = table.write(cut)
    assert f"--pipeline_parallel_degree: predicted only; {words}" in text and "run_llama_npu.py" not in text
    assert command.as_json(cut)["plan"]["arguments"] is None
    assert "predicted only" not in table.write(whole)
    found = command.planned([*argv[:6], "--search"])[1]
    assert found.layout.pipeline_parallel_degree == 1
    assert f"The search left pipelines out, because {words}" in table.write(found)


@pytest.mark.paddlenlp
def test_a_pipeline_that_does_not_fit_is_changed_to_another_pipeline():
    argv = ["--model_name_or_path", "qwen2.5-72b", "--cards", "64", "--global_batch_size", "256"]
    argv += ["--pipeline_parallel_degree", "8", "--tensor_parallel_degree", "4"]
    answer = command.planned(argv)[1]
    assert not answer.fits and answer.change.layout.pipeline_parallel_degree > 1
    assert "run_llama_npu.py" not in table.write(answer)


def test_a_context_that_does_not_fit_says_what_was_kept():
    argv = ["--model_name_or_path", "llama2-7b", "--cards", "8", "--context_parallel_degree", "8"]
    changed = command.planned(argv)[1]  # one replica: its cards share states all the same
    assert changed.change.layout.sharding == "stage1" and changed.change.layout.context_parallel_degree == 8
    argv[1] = "llama2-70b"
    text = table.write(command.planned(argv)[1])
    assert "No layout of 8 cards with --context_parallel_degree 8 fits; give more --cards, or other" in text
    assert "Predicted only: this trainer has no such run" in text


def test_the_host_s_memory_is_that_of_all_cards_of_a_server():
    argv = ["--model_name_or_path", "llama2-7b", "--cards", "16", "--sharding", "stage1", "--offload"]
    answer = command.planned(argv)[1]
    share = 12 * answer.shape.parameters / 2  # one of two servers
    assert share <= answer.host_bytes <= 1.1 * share
    assert f"take {answer.host_bytes / 2**30:.1f} GiB of the memory of a host with 8 cards" in table.write(
        answer
    )
    assert command.as_json(answer)["plan"]["host_bytes_per_server"] == answer.host_bytes
    assert command.planned([*argv[:-1]])[1].host_bytes == 0
    few = command.planned(["--model_name_or_path", "llama2-7b", "--cards", "2", "--offload"])[1]
    assert few.host_bytes == pytest.approx(2 * 12 * few.shape.parameters, rel=0.01)


def test_experts_that_tensor_parallelism_leaves_whole_are_predicted_only():
    argv = ["--model_name_or_path", "deepseek-v3", "--cards", "512", "--tensor_parallel_degree", "8"]
    words = "but every process of this trainer has them whole"
    assert words in table.write(command.planned(argv)[1])
    assert words not in table.write(command.planned([*argv, "--stack", "mindspeed"])[1])
    assert words not in table.write(command.planned(argv[:4])[1])


def test_parts_of_ring_attention_are_merged():
    layout = Layout(cards=8, context_parallel_degree=4, max_seq_length=32768)
    found = [each for each in program.micro_batch(LLAMA, layout) if each.name == "attention.merge"]
    elements, steps = layout.tokens_per_rank * LLAMA.query_size, 3 * LLAMA.num_hidden_layers
    moved = {each.phase: each.bytes * each.times for each in found}
    # Three quarters of the queries, on average; every key and value; all gradients read twice, written once.
    assert moved == {
        "forward": 62 * 0.75 * elements * steps,
        "backward": 6 * (0.75 + 2) * elements * steps,
    }
    whole = program.micro_batch(LLAMA, dataclasses.replace(layout, cards=2, context_parallel_degree=1))
    assert not any(each.name == "attention.merge" for each in whole)


def test_context_parallelism_divides_attention_that_is_not_fused():
    layout = Layout(cards=4, context_parallel_degree=4, fused=frozenset())
    cut = program.micro_batch(LLAMA, layout)
    whole = program.micro_batch(LLAMA, dataclasses.replace(layout, cards=1, context_parallel_degree=1))
    products = [
        sum(one.flops * one.times for one in found if one.name.startswith("attention.product"))
        for found in (whole, cut)
    ]
    assert products[0] == 4 * products[1] > 0
    assert {one.phase for one in cut if one.name == "attention.ring"} == {"forward", "backward"}


@pytest.mark.parametrize(("sharding", "sums"), [("stage2", "reduce"), ("stage3", "all_reduce")])
def test_the_cards_of_one_replica_exchange_what_they_share(sharding, sums):
    layout = Layout(cards=4, context_parallel_degree=4, sharding=sharding)
    found = [one for one in program.micro_batch(LLAMA, layout) if one.group == "sharding"]
    assert sums in {one.collective for one in found} and {one.group_size for one in found} == {4}
