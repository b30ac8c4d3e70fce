"""Runs that their model cannot do are refused."""

import contextlib
import json
from dataclasses import replace

import pytest
from paddlenlp.trainer.trainer_utils import ShardingOption

from llm_npu import config
from llm_npu.models.families import FAMILIES
from llm_npu.training.model import config_for

pytestmark = pytest.mark.sampled


def test_a_run_that_the_model_cannot_do_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--max_seq_length is 2048, but llama-tiny has 1024 positions"):
        config_for(config.parse(["--max_seq_length", "2048"]))
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "rope_scaling": scaling}))
    packed = ["--model_name_or_path", str(tmp_path), "--packing", "first_fit"]
    with pytest.raises(ValueError, match=r"dynamic .*--padding longest"):
        config_for(config.parse(packed))
    config_for(config.parse([*packed, "--padding", "longest"]))
    with pytest.raises(ValueError, match=r"layer 6, .* 0 to 5"):
        config_for(config.parse(["--recompute", "--no_recompute_layers", "0", "6"]))


def test_lora_does_not_train_weights_that_are_split():
    run = config.parse([])
    model = config_for(run)
    run.model.finetuning_type = "lora"
    for stage in ("stage1", "stage2"):
        run.training.sharding = [ShardingOption(stage)]
        config.check_model(run, model)
    run.training.sharding = [ShardingOption("stage3")]
    with pytest.raises(ValueError, match=r"--finetuning_type lora .* use stage1 or stage2"):
        config.check_model(run, model)
    for degree in ("tensor_parallel_degree", "pipeline_parallel_degree"):
        run = config.parse([])
        run.model.finetuning_type = "lora"
        setattr(run.training, degree, 2)
        with pytest.raises(ValueError, match=r"lora .*sharding only"):
            config.check_model(run, model)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--model_type mixtral", None),
        ("--model_type llama", r"limits the experts of .*Mixtral"),
        ("--model_type mixtral --use_fused_moe false", r"leave use_fused_moe on"),
        ("--model_type mixtral --disable_fused_options", r"leave use_fused_moe on"),
        ("--model_type mixtral --finetuning_type lora", r"not tested with --finetuning_type lora"),
    ],
)
def test_capacities_that_no_expert_can_have_are_refused(flags, sentence):
    run = config.parse([*flags.split(), "--moe_expert_capacity_factor", "1.25"])
    with pytest.raises(ValueError, match=sentence) if sentence else contextlib.nullcontext():
        config_for(run)


@pytest.mark.parametrize(
    ("model_type", "fields", "degree", "sentence"),
    [
        ("llama", {}, 4, None),
        ("llama", {}, 5, r"has only 4 attention heads .* at most 4"),
        ("qwen2", {"attention_dropout": 0.1}, 2, r"attention_dropout 0.1"),
        ("gpt", {"hidden_dropout_prob": 0.1}, 2, r"hidden_dropout_prob 0.1"),
        ("gpt", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}, 2, None),
        ("mixtral", {}, 2, None),
    ],
)
def test_sequences_that_cannot_be_split_are_refused(model_type, fields, degree, sentence):
    run = config.parse(["--model_type", model_type])
    model = config_for(run)
    for name, value in fields.items():
        setattr(model, name, value)
    run.training.sep_parallel_degree = degree
    if degree == 5:  # a ring needs no heads
        config.check_model(replace(run, ring=5), model)
    if sentence is None:
        return config.check_model(run, model)
    with pytest.raises(ValueError, match=sentence):
        config.check_model(run, model)


def test_sequences_of_other_families_are_not_split():
    run = config.parse([])
    model = config_for(run)
    run.training.sep_parallel_degree = 2
    with pytest.raises(ValueError, match=r"only those of .*Llama"):
        config.check_model(run, model, replace(FAMILIES["llama"], splits_sequences=False))


@pytest.mark.parametrize(
    ("model_type", "ranks", "sentence"),
    [
        ("llama", 2, r"only those of Mixtral and Qwen2-MoE"),
        ("mixtral", 3, r"num_local_experts 4, .*divides 4"),
        ("qwen2_moe", 3, r"num_experts 8, .*divides 8"),
        ("mixtral", 4, None),
        ("qwen2_moe", 4, None),
    ],
)
def test_experts_that_cannot_be_distributed_are_refused(model_type, ranks, sentence):
    run = config.parse(["--model_type", model_type])
    model = config_for(run)
    with pytest.raises(ValueError, match=sentence) if sentence else contextlib.nullcontext():
        config.check_model(replace(run, expert_ranks=ranks), model)


def test_tensor_parallelism_does_not_split_distributed_experts():
    run = config.parse(["--model_type", "qwen2_moe"])
    model = config_for(run)
    run.training.tensor_parallel_degree, run.training.sequence_parallel = 2, True
    shared = replace(run, expert_ranks=2)
    model.moe_intermediate_size, model.intermediate_size = 127, 766
    config.check_model(shared, model)
    model.shared_expert_intermediate_size = 383
    with pytest.raises(ValueError, match="shared_expert_intermediate_size 383"):
        config.check_model(shared, model)


def test_stages_pass_no_router_losses():
    run = config.parse(["--model_type", "qwen2_moe"])
    model = config_for(run)
    run.training.pipeline_parallel_degree = 2
    config.check_model(run, model)
    model.output_router_logits = True
    with pytest.raises(ValueError, match=r"does not pass router losses .* output_router_logits"):
        config.check_model(run, model)


def test_sequences_are_split_in_combinations_that_were_tested():
    for model_type, refused in (("qwen2", False), ("gpt", True)):
        run = config.parse(["--model_type", model_type])
        model = config_for(run)
        run.training.sep_parallel_degree = 2
        in_a_ring = replace(run, ring=2)
        with pytest.raises(ValueError, match="split only by") if refused else contextlib.nullcontext():
            config.check_model(in_a_ring, model)
        run.training.tensor_parallel_degree = 2
        with pytest.raises(ValueError, match="split only by") if refused else contextlib.nullcontext():
            config.check_model(run, model)


def test_what_gpt_cannot_do_is_refused():
    gpt = ["--model_type", "gpt"]
    run = config.parse(gpt)
    model = config_for(run)
    run.model.finetuning_type = "lora"
    with pytest.raises(ValueError, match=r"lora .* GPT"):
        config.check_model(run, model)
    upstream = [*gpt, "--recompute", "--disable_fused_options"]
    with pytest.raises(ValueError, match=r"recomputes nothing .* use full_attn or core_attn"):
        config_for(config.parse(upstream))
    config_for(config.parse([*upstream, "--recompute_granularity", "full_attn"]))
    config_for(config.parse([*gpt, "--recompute"]))


@pytest.mark.parametrize(
    ("flags", "shared", "sentence"),
    [
        ("", {"tensor_parallel_degree": 5}, r"llama-tiny has num_\w+ \d+"),
        ("", {"pipeline_parallel_degree": 7}, "has 6 layers; use at most 6"),
        (
            "",
            {"pipeline_parallel_degree": 3, "virtual_pp_degree": 4},
            "is 12, which does not divide the 6 layers of llama-tiny",
        ),
        (
            "",
            {"pipeline_parallel_degree": 2, "pipeline_schedule": "dualpipev"},
            "makes 4 chunks, which does not divide the 6 layers of llama-tiny",
        ),
        ("--model_type mixtral", {"tensor_parallel_degree": 2}, "the experts of mixtral-tiny are not split"),
        ("--model_type qwen2_moe", {"tensor_parallel_degree": 2}, "the experts of .* are not split"),
        (
            "--model_type gemma",
            {"tensor_parallel_degree": 2, "sequence_parallel": True},
            "is not available for Gemma",
        ),
        (
            "--model_type mistral",
            {"tensor_parallel_degree": 2, "sequence_parallel": True},
            "is not available for Mistral",
        ),
        ("--model_type mixtral", {"pipeline_parallel_degree": 2}, "only Llama and Qwen2-MoE;"),
        ("--model_type qwen2", {"pipeline_parallel_degree": 2}, "only Llama and Qwen2-MoE;"),
        ("--model_type mistral", {"pipeline_parallel_degree": 2}, "only Llama and Qwen2-MoE;"),
        (
            "--model_type qwen2_moe",
            {"pipeline_parallel_degree": 2, "pipeline_schedule": "dualpipev"},
            "was not tested with MoE models",
        ),
        (
            "--model_type qwen2_moe",
            {"pipeline_parallel_degree": 3, "virtual_pp_degree": 2},
            "--virtual_pp_degree 2 was not tested with MoE models",
        ),
        (
            "--packing first_fit",
            {"pipeline_parallel_degree": 2},
            "--pipeline_parallel_degree does not pass masks",
        ),
        (
            "--packing first_fit",
            {"tensor_parallel_degree": 2, "sequence_parallel": True},
            "--sequence_parallel .*--packing stream",
        ),
        (
            "--max_seq_length 33",
            {"tensor_parallel_degree": 2, "sequence_parallel": True},
            "--max_seq_length is 33; specify a multiple of 2",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_processes_cannot_share_is_refused_before_anything_is_built(
    flags, shared, sentence, monkeypatch
):
    run = config.parse(flags.split())
    model = config_for(run)
    monkeypatch.setattr(type(run.training), "world_size", 2)
    for name, value in shared.items():
        setattr(run.training, name, value)
    with pytest.raises(ValueError, match=sentence):
        config.check_model(run, model)


def test_heads_of_all_processes_would_drop_the_same_weights():
    run = config.parse(["--model_type", "qwen2"])
    model = config_for(run)
    run.training.tensor_parallel_degree = 2
    config.check_model(run, model)
    model.attention_dropout = 0.1
    with pytest.raises(ValueError, match=r"qwen2-tiny has attention_dropout 0\.1, but"):
        config.check_model(run, model)
