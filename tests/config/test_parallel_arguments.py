"""Degrees that several processes cannot share a run by are refused before Paddle sets anything up.

tests/launch/test_launch.py has two processes that do so.
"""

import math
from argparse import Namespace

import paddle
import pytest

from llm_npu import config
from llm_npu.config import parallel_checks
from llm_npu.config.parallel_checks import (
    DEGREES,
    UNSUPPORTED_PARALLELISM,
    WITHOUT_EXPERT_PARALLEL,
    WITHOUT_SPLIT_SEQUENCES,
)
from llm_npu.config.read import flags
from llm_npu.models import families, library
from llm_npu.training import model
from paddle_fused import paddle_release

pytestmark = pytest.mark.sampled
V = {"pipeline_parallel_degree": 2, "pipeline_schedule": "dualpipev", "gradient_accumulation_steps": 4}
SPLIT, RING = {"sep_parallel_degree": 2}, {"context_parallel_degree": 2}
EXPERTS = {"expert_parallel_degree": 2}
SEQUENCE = {"tensor_parallel_degree": 2, "sequence_parallel": True}


def check(processes, installed=library.PADDLENLP, paddle_number=(3, 3, 1), **degrees):
    """Check a run in an environment with the library ``installed`` and that release of Paddle."""
    others = {"amp_master_grad": True}
    others |= {"virtual_pp_degree": 1, "gradient_accumulation_steps": 1, "sequence_parallel": False}
    others |= {"use_fused_moe": True, "finetuning_type": "full", "expert_parallel_degree": -1}
    others |= dict.fromkeys((*WITHOUT_SPLIT_SEQUENCES, *WITHOUT_EXPERT_PARALLEL))
    others |= {"stage": "pt", "max_seq_length": 32}
    others |= {"sharding_parallel_config": "", "tensor_parallel_config": "", "disable_fused_options": False}
    others |= {"use_npu_fusion_attention": True, "split_inputs_sequence_dim": True, "sharding": ""}
    others |= {"pipeline_schedule": None, "pipeline_parallel_config": "", "offload_activations": None}
    values = dict.fromkeys((*DEGREES, *UNSUPPORTED_PARALLELISM), -1) | others | degrees
    with pytest.MonkeyPatch.context() as environment:
        environment.setattr(library, "installed_or_none", lambda: installed)
        environment.setattr(paddle_release, "installed_number", lambda: paddle_number)
        parallel_checks.check(Namespace(**values, processes=processes))


@pytest.mark.parametrize(
    ("degrees", "sentence"),
    [
        (
            {"tensor_parallel_degree": 3},
            "--tensor_parallel_degree 3 does not divide the 4 processes",
        ),
        ({"pipeline_parallel_degree": 8}, "or start a multiple of 8 processes"),
        (
            {"sharding": "stage1", "sharding_parallel_degree": 3},
            "--sharding_parallel_degree 3 does not",
        ),
        ({"sharding": "stage2", "sharding_degree": 8}, "--sharding_degree 8 does not divide the 4 processes"),
        (
            {"tensor_parallel_degree": 2, "sharding": "stage1", "sharding_parallel_degree": 4},
            "--tensor_parallel_degree 2 times --sharding_parallel_degree 4, 8, ",
        ),
        ({"sharding_parallel_degree": 2}, "--sharding_parallel_degree is 2, but --sharding "),
        ({"sharding": "stage1", "sharding_degree": 2, "sharding_parallel_degree": 2}, "is the old name of"),
        ({"sharding": "stage3", "tensor_parallel_degree": 2}, "not support --sharding stage3 with"),
        (
            {"sharding": "stage3 offload", "tensor_parallel_degree": 2},
            "--sharding stage1 --offload_optimizer",
        ),
        ({"sharding": "stage2", "sharding_parallel_degree": 2}, "remove --sharding_parallel_degree"),
        ({"tensor_parallel_degree": 0}, "--tensor_parallel_degree is 0, but must be 1 or more"),
        ({"pipeline_parallel_degree": -2}, "--pipeline_parallel_degree is -2, but must be 1 or more"),
        ({"sep_parallel_degree": 3}, "--sep_parallel_degree 3 does not divide the 4 processes"),
        ({**SPLIT, "sharding": "stage2"}, "--sharding stage2 does not sum"),
        ({**SPLIT, "sharding": "stage3"}, "--sharding stage3 does not sum"),
        ({**SPLIT, "enable_auto_parallel": True}, "--enable_auto_parallel"),
        ({**SPLIT, "overlap": "auto"}, "--overlap"),
        ({**SPLIT, "compare_with": "composed"}, "--compare_with"),
        ({**SPLIT, "dump_tensors": "1"}, "--dump_tensors"),
        ({**SPLIT, "check_nan_inf": True}, "--check_nan_inf"),
        ({**SPLIT, "fp16": True}, "--fp16"),
        ({**SPLIT, "sharding_parallel_config": "split_param"}, "split_param"),
        ({**SPLIT, "pipeline_parallel_degree": 2}, "--pipeline_parallel_degree"),
        ({**SPLIT, "stage": "dpo"}, "--stage dpo"),
        ({**SPLIT, "use_npu_fusion_attention": False}, "use_npu_fusion_attention"),
        ({**SPLIT, "disable_fused_options": True}, "use_npu_fusion_attention"),
        ({**SPLIT, "split_inputs_sequence_dim": False}, "--split_inputs_sequence_dim"),
        ({**SPLIT, "max_seq_length": 31}, "--max_seq_length is 31; specify a multiple of 2"),
        (
            {**SPLIT, "max_seq_length": 30, "tensor_parallel_degree": 2, "sequence_parallel": True},
            "--max_seq_length is 30; specify a multiple of 4",
        ),
        ({"pipeline_parallel_degree": 2, "virtual_pp_degree": 2}, "at least 3 stages"),
        (
            {"pipeline_parallel_degree": 4, "virtual_pp_degree": 2, "gradient_accumulation_steps": 6},
            "--gradient_accumulation_steps is 6",
        ),
        ({"pipeline_parallel_degree": 4, "pipeline_schedule": "interleaved"}, "set --virtual_pp_degree 2"),
        (
            {"pipeline_parallel_degree": 4, "virtual_pp_degree": 2, "pipeline_schedule": "1f1b"},
            "--virtual_pp_degree 2 is for --pipeline_schedule interleaved",
        ),
        ({**V, "virtual_pp_degree": 2}, "--virtual_pp_degree 2 is for --pipeline_schedule interleaved"),
        ({**V, "gradient_accumulation_steps": 3}, "needs 4 micro batches or more"),
        ({**V, "fp16": True}, "--fp16"),
        ({**V, "overlap": "auto"}, "--overlap"),
        ({**V, "offload_activations": "all"}, "--offload_activations"),
        ({**V, "sharding_parallel_config": "split_param"}, "--sharding_parallel_config"),
        ({**V, "pipeline_parallel_config": "enable_overlap_p2p_comm"}, "--pipeline_parallel_config"),
        ({**V, "disable_fused_options": True}, "use_npu_fusion_attention"),
        ({**V, "use_npu_fusion_attention": False}, "use_npu_fusion_attention"),
        ({**V, "enable_auto_parallel": True}, "--enable_auto_parallel has its own"),
        ({**V, **SPLIT}, "--pipeline_parallel_degree"),
        (
            {"pipeline_parallel_degree": 2, "pipeline_parallel_config": "use_dualpipev"},
            "set --pipeline_schedule dualpipev instead",
        ),
        (
            {"enable_auto_parallel": True, "tensor_parallel_degree": 2, "overlap": "auto"},
            "--overlap auto ",
        ),
        ({"context_parallel_degree": 3}, "--context_parallel_degree 3 does not divide the 4 processes"),
        ({**RING, "sharding": "stage2"}, "--sharding stage2 does not sum"),
        ({**RING, "fp16": True}, "--fp16"),
        ({**RING, "max_seq_length": 30}, "--max_seq_length is 30; specify a multiple of 4"),
        (
            {**SPLIT, **RING, "max_seq_length": 31},
            "2 and --context_parallel_degree 2 splits sequences into 4",
        ),
        ({"expert_parallel_degree": 3}, "--expert_parallel_degree 3 does not divide the 4 processes"),
        ({"expert_parallel_degree": 0}, "--expert_parallel_degree 0 does not divide"),
        *(({**EXPERTS, flag: "1"}, f"--{flag}") for flag in WITHOUT_EXPERT_PARALLEL),
        ({**EXPERTS, "sharding": "stage2"}, "--sharding stage2 splits"),
        ({**EXPERTS, "sharding": "stage3"}, "--sharding stage3 splits"),
        ({**EXPERTS, "sharding": "stage1", "sharding_parallel_degree": 2}, "--sharding_parallel_degree"),
        ({**EXPERTS, "tensor_parallel_degree": 2}, "set --sequence_parallel true"),
        (
            {"expert_parallel_degree": 4, "pipeline_parallel_degree": 2},
            "--expert_parallel_degree 4 does not divide the 2 processes of each of 2 pipeline stages",
        ),
        ({**EXPERTS, "use_fused_moe": False}, "use_fused_moe"),
        ({**EXPERTS, "stage": "dpo"}, "--stage dpo"),
        ({**EXPERTS, "finetuning_type": "lora"}, "--finetuning_type lora"),
        ({"use_expert_parallel": True}, "--use_expert_parallel is True"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(degrees, sentence):
    with pytest.raises(ValueError) as caught:
        check(4, **degrees)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    check(1, **degrees)  # shares nothing


@pytest.mark.parametrize(
    ("processes", "degrees"),
    [
        (4, {}),
        (4, {"tensor_parallel_degree": 4}),
        (6, {"tensor_parallel_degree": 3, "pipeline_parallel_degree": 1}),
        (8, {"tensor_parallel_degree": 2, "pipeline_parallel_degree": 2}),
        (8, {"tensor_parallel_degree": 4, "sharding": "stage1", "sharding_parallel_degree": 2}),
        (4, {"sharding": "stage1", "sharding_parallel_degree": 2}),
        (4, {"sharding": "stage2", "sharding_parallel_degree": 4}),
        (4, {"sharding": "stage2", "sharding_parallel_degree": 2, "amp_master_grad": False}),
        (4, {"sharding": "stage2", "tensor_parallel_degree": 2}),
        (4, {"sharding": "stage3", "tensor_parallel_degree": 2, "enable_auto_parallel": True}),
        (4, {"sharding_parallel_degree": 1, "sep_parallel_degree": 1, "use_expert_parallel": False}),
        (4, {**SPLIT, "sharding": "stage1"}),
        (4, EXPERTS),
        (4, {**EXPERTS, **SPLIT}),
        (4, {"expert_parallel_degree": 4, **RING}),
        (4, {**EXPERTS, **SPLIT, "sharding": "stage1", "sharding_parallel_degree": 2}),
        (4, {**EXPERTS, "sharding": "stage1", "sharding_parallel_degree": 4}),
        (4, {**EXPERTS, **SEQUENCE, "sharding": "stage1", "sharding_parallel_degree": 2}),
        (4, {**EXPERTS, **SEQUENCE, "pipeline_parallel_degree": 2}),
        (4, {**SPLIT, **RING}),
        (8, {**RING, "tensor_parallel_degree": 2, "sequence_parallel": True, "sharding": "stage1"}),
        (4, {**SPLIT, "tensor_parallel_degree": 2, "sequence_parallel": True}),
        (4, {"pipeline_parallel_degree": 4, "virtual_pp_degree": 2, "gradient_accumulation_steps": 4}),
        (4, {"pipeline_parallel_degree": 4, "virtual_pp_degree": 2, "gradient_accumulation_steps": 10}),
        (4, {**V, "sharding": "stage1"}),
        (8, {**V, "tensor_parallel_degree": 4, "sequence_parallel": True}),
        (4, {**V, "pipeline_schedule": "1f1b", "gradient_accumulation_steps": 1}),
    ],
)
def test_degrees_that_fit(processes, degrees):
    check(processes, **degrees)


@pytest.mark.paddlenlp  # PaddleFormers has no --sharding_parallel_config
@pytest.mark.parametrize("rejected", [WITHOUT_SPLIT_SEQUENCES, WITHOUT_EXPERT_PARALLEL])
def test_what_is_rejected_is_a_flag(rejected):
    assert rejected.keys() <= flags().keys()


def test_a_paddle_without_dualpipev_is_refused():
    with pytest.raises(ValueError, match=r"needs Paddle 3\.2 or later; this is .* Use 1f1b or interleaved"):
        check(4, paddle_number=(3, 1, 1), **V)
    check(4, paddle_number=(3, 1, 1), **{**V, "pipeline_schedule": "1f1b"})


@pytest.mark.parametrize("degrees", [V, SPLIT, RING])
def test_what_only_one_library_has_is_refused_with_the_other(degrees):
    with pytest.raises(ValueError, match=r"(of|for) PaddleNLP's models"):
        check(4, installed=library.PADDLEFORMERS, **degrees)


@pytest.mark.parametrize(
    ("ranks_of_machines", "degree", "group"),
    [
        ((2, 2), 2, None),
        ((4, 4), 2, None),
        ((2, 2), 4, "ranks 0 to 3"),
        ((3, 3), 2, "ranks 2 to 3"),
        ((2, 4, 2), 4, "ranks 0 to 3"),
    ],
)
def test_tensor_parallelism_stays_on_a_machine(ranks_of_machines, degree, group, monkeypatch):
    endpoints = [f"10.0.0.{m}:{port}" for m, count in enumerate(ranks_of_machines) for port in range(count)]
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", ",".join(endpoints))
    if group is None:
        return check(len(endpoints), tensor_parallel_degree=degree)
    with pytest.raises(ValueError) as caught:
        check(len(endpoints), tensor_parallel_degree=degree)
    first = ranks_of_machines[0] - 1
    for words in (group, f"10.0.0.0 (ranks 0 to {first})", f"divides {math.gcd(*ranks_of_machines)}"):
        assert words in str(caught.value)


@pytest.mark.slow
def test_parallelism_that_this_script_does_not_have_changes_nothing_in_one_process():
    for name in (*UNSUPPORTED_PARALLELISM, *RING, *EXPERTS, "sequence_parallel", "tensor_parallel_degree"):
        value = "true" if isinstance(config.flags()[name].default, bool) else "2"
        run = config.parse([f"--{name}", value, "--device", "cpu"])
        assert "--nproc" in dict(run.ineffective)[name]
        model_config = model.config_for(run)
        for field in ("context_parallel_degree", "sep_parallel_degree", "context_parallel_size"):
            assert getattr(model_config, field, 1) in (-1, 0, 1)
        model_config.num_hidden_layers = 1
        logits = families.new_model(model_config)(paddle.arange(8)[None])
        assert paddle.isfinite(logits[0] if isinstance(logits, tuple) else logits).all(), name
