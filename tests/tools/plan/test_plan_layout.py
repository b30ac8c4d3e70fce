"""The sizes of a model, and how a run is shared by cards."""

import dataclasses

import pytest
from plans import model

from llm_npu import config
from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape

pytestmark = pytest.mark.sampled

PRESETS = [
    "llama2-7b",
    "llama2-13b",
    "llama2-34b",
    "llama2-70b",
    "llama3-8b",
    "llama3-70b",
    "llama3.1-8b",
    "llama3.1-70b",
    "llama3.2-1b",
    "llama3.2-3b",
    "codellama-34b",
    "qwen1.5-0.5b",
    "qwen2-0.5b",
    "qwen2.5-3b",
    pytest.param("mistral-7b", marks=pytest.mark.paddlenlp),
    pytest.param("mixtral-8x7b", marks=pytest.mark.paddlenlp),
]


def layout(**fields):
    return Layout(**({"cards": 32, "tensor_parallel_degree": 8, "pipeline_parallel_degree": 4} | fields))


@pytest.mark.parametrize("name", PRESETS)
def test_every_model_has_a_shape_and_trains_data_parallel(name):
    shape = ModelShape.of(name)
    assert shape.name == name
    Layout(cards=8, max_seq_length=4096).check(shape)


def test_a_directory_is_read(tmp_path):
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 3}
    shape = ModelShape.of(model(tmp_path, **sizes, num_key_value_heads=None))
    assert (shape.hidden_size, shape.head_dim, shape.num_key_value_heads) == (512, 64, 8)
    with pytest.raises(ValueError, match="hidden_size 500 is not a multiple of num_attention_heads 8"):
        ModelShape.of(model(tmp_path, **sizes | {"hidden_size": 500}))


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {"num_experts": 8, "shared_expert_intermediate_size": 64}),
        pytest.param(
            "mixtral",
            {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "num_experts": 3},
            marks=pytest.mark.paddlenlp,
        ),
        ("qwen2", {"sliding_window": 16, "num_local_experts": 4}),
    ],
)
def test_fields_of_other_families_change_nothing(tmp_path, family, fields):
    own = {"model_type": family} | (
        {"num_local_experts": 8, "num_experts_per_tok": 2} if family == "mixtral" else {}
    )
    plain = ModelShape.of(model(tmp_path, **own))
    assert ModelShape.of(model(tmp_path, **own | fields)) == plain


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        pytest.param(
            {"model_type": "mistral", "sliding_window": "x"},
            "sliding_window 'x', but it must be",
            marks=pytest.mark.paddlenlp,
        ),
        ({"model_type": ["llama"]}, "describes .'llama'., but this script supports"),
    ],
)
def test_a_directory_that_makes_no_model_is_refused(tmp_path, fields, words):
    with pytest.raises(ValueError, match=words):
        ModelShape.of(model(tmp_path, **fields))


def test_degrees_divide_the_cards_and_the_batch():
    result = layout(cards=64, global_batch_size=128, per_device_train_batch_size=2)
    assert (result.data_parallel_degree, result.micro_batches) == (2, 32)
    assert (result.tokens_per_step, result.sharding_degree) == (128 * 4096, 1)
    assert dataclasses.replace(result, sharding="stage1").sharding_degree == 2
    assert layout(cards=64).global_batch_size == 2
    split = layout(pipeline_parallel_degree=1, sep_parallel_degree=2, context_parallel_degree=2)
    assert (split.data_parallel_degree, split.replicas, split.tokens_per_rank) == (1, 4, 1024)


def test_layers_are_shared_as_paddlenlp_shares_them():
    shape = ModelShape.of("llama2-70b")
    assert layout().stage_layers(shape) == (20, 20, 20, 20)
    ten = dataclasses.replace(shape, num_hidden_layers=10)
    assert layout().stage_layers(ten) == (2, 3, 3, 2)  # 13 parts: 3, 3, 3, 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cards": 0}, "--cards is 0"),
        ({"cards": 30}, "--pipeline_parallel_degree 4 is 32, .* --cards 30"),
        ({"cards": 64, "global_batch_size": 3}, "--global_batch_size is 3, .* a multiple of 2"),
        ({"sharding": "stage4"}, "--sharding is 'stage4', .* stage1, stage2, stage3"),
        ({"sharding": "stage2"}, "stage2 cannot be combined with --pipeline"),
        ({"pipeline_parallel_degree": 1, "sharding": "stage3"}, "stage3 cannot be combined with --tensor"),
        ({"pipeline_schedule": "zero"}, "--pipeline_schedule is 'zero', .* interleaved, dualpipev"),
        ({"expert_parallel_degree": 0}, "--expert_parallel_degree is 0"),
        ({"overlap": "much"}, "--overlap is 'much'"),
        ({"virtual_pp_degree": 2, "global_batch_size": 6}, "in groups of 4, .* a step has 6"),
        ({"tensor_parallel_degree": 1, "sequence_parallel": True}, "set --tensor_parallel_degree"),
    ],
)
def test_layouts_that_no_run_can_have_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        layout(**fields)


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("qwen2.5-3b", {}, "num_key_value_heads 2"),
        pytest.param(
            "mixtral-8x7b",
            {"pipeline_parallel_degree": 1},
            "experts of mixtral-8x7b are not split",
            marks=pytest.mark.paddlenlp,
        ),
        ("llama2-70b", {"max_seq_length": 8192}, "has 4096 positions"),
        *(
            pytest.param(
                "llama3.1-8b", {"pipeline_parallel_degree": 1} | fields, words, marks=pytest.mark.paddlenlp
            )
            for fields, words in (
                (
                    {"tensor_parallel_degree": 1, "sep_parallel_degree": 2, "sharding": "stage2"},
                    "would diverge",
                ),
                ({"context_parallel_degree": 2, "overlap": "mc2"}, "does not work with --overlap"),
                ({"context_parallel_degree": 4, "max_seq_length": 4100}, "a multiple of 8"),
                ({"cards": 64, "sep_parallel_degree": 8}, "only 4 attention heads to split; use at most 4"),
            )
        ),
        (
            "llama2-7b",
            {"pipeline_parallel_degree": 4, "virtual_pp_degree": 16, "global_batch_size": 32},
            "is 64, .* 32 layers",
        ),
        (
            "llama2-7b",
            {"pipeline_parallel_degree": 2, "virtual_pp_degree": 2, "cards": 16, "global_batch_size": 8},
            "a pipeline of at least 3 stages",
        ),
        *(
            pytest.param(
                name, {"pipeline_schedule": "dualpipev"} | fields, words, marks=pytest.mark.paddlenlp
            )
            for name, fields, words in (
                ("llama2-7b", {}, "needs 8 micro batches or more"),
                ("llama2-7b", {"global_batch_size": 8, "overlap": "mc2"}, "was not tested with --overlap"),
                ("llama3.2-3b", {"global_batch_size": 8}, "makes 8 chunks, .* 28 layers"),
            )
        ),
        *(
            pytest.param(name, {"pipeline_parallel_degree": 1} | fields, words, marks=pytest.mark.paddlenlp)
            for name, fields, words in (
                ("mixtral-8x7b", {"expert_parallel_degree": 2}, "have the same tokens"),
                (
                    "mixtral-8x7b",
                    {"tensor_parallel_degree": 1, "expert_parallel_degree": 16},
                    "num_local_experts 8, which is not a multiple",
                ),
                (
                    "llama2-7b",
                    {"tensor_parallel_degree": 1, "expert_parallel_degree": 2},
                    "distributes experts over ranks, but only",
                ),
            )
        ),
        (
            "llama2-7b",
            {"tensor_parallel_degree": 1, "pipeline_parallel_degree": 27, "cards": 27},
            "leave a stage without a layer",
        ),
        pytest.param(
            "gpt2",
            {"max_seq_length": 1024},
            "is a GPT, which the planner does not model",
            marks=pytest.mark.paddlenlp,
        ),
    ],
)
def test_models_that_cannot_be_shared_so_are_refused(name, fields, words):
    with pytest.raises(ValueError, match=words):
        layout(**fields).check(ModelShape.of(name))


@pytest.mark.paddlenlp
def test_the_arguments_are_those_of_the_training_script():
    fields = {"sequence_parallel": True, "sharding": "stage1", "recompute": True, "overlap": "mc2"}
    arguments = layout(cards=64, global_batch_size=64, **fields).arguments(ModelShape.of("llama2-70b"))
    assert dict(zip(arguments[::2], arguments[1::2], strict=True)) == {
        "--model_name_or_path": "llama2-70b",
        "--max_seq_length": "4096",
        "--per_device_train_batch_size": "1",
        "--gradient_accumulation_steps": "32",
        "--tensor_parallel_degree": "8",
        "--pipeline_parallel_degree": "4",
        "--sequence_parallel": "true",
        "--sharding": "stage1",
        "--recompute": "true",
        "--recompute_granularity": "full",
        "--overlap": "mc2",
    }
    run = config.parse(arguments)
    assert (run.data.max_seq_length, run.training.gradient_accumulation_steps) == (4096, 32)
