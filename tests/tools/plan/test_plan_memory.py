"""The predicted memory against the virtual device's own peak, in runs of the training script."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import run_inputs
from dry_runs import SCRIPT, followed

from llm_npu.plan.layout import Layout
from llm_npu.plan.memory_model.memory import peak, shares, weights
from llm_npu.plan.shape import ModelShape

pytestmark = pytest.mark.slow

SIZES = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
QWEN2 = {"model_type": "qwen2", "tie_word_embeddings": True}
MIXTRAL = {"model_type": "mixtral", "intermediate_size": 384}
MIXTRAL |= {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN2_MOE = {"model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2}
QWEN2_MOE |= {"moe_intermediate_size": 384, "shared_expert_intermediate_size": 768, "norm_topk_prob": True}
LLAMA3 = {
    "max_position_embeddings": 8192,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
}
TP2 = {"cards": 2, "tensor_parallel_degree": 2}
SP2 = {**TP2, "sequence_parallel": True}
PP2 = {"cards": 2, "pipeline_parallel_degree": 2, "global_batch_size": 8}
PP4 = {"cards": 4, "pipeline_parallel_degree": 4, "per_device_train_batch_size": 1, "global_batch_size": 8}
VPP = {**PP4, "virtual_pp_degree": 2}
FULL = {"recompute": True}
STAGE3 = {"cards": 2, "sharding": "stage3"}
CUT = {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 2304}  # wide enough to be shared
ULYSSES2, RING2 = {"cards": 2, "sep_parallel_degree": 2}, {"cards": 2, "context_parallel_degree": 2}
IN_V = {**PP2, "pipeline_schedule": "dualpipev"}
EXPERTS2 = {"cards": 2, "expert_parallel_degree": 2}
HYBRID = {"cards": 4, "sep_parallel_degree": 2, "context_parallel_degree": 2}
CORE = {"recompute": True, "recompute_granularity": "core_attn"}
ATTENTION = {"recompute": True, "recompute_granularity": "full_attn"}

DEEP = {"num_hidden_layers": 12, "max_position_embeddings": 2048}
LONG = {"max_seq_length": 2048, "offload_activations": True}
SHORT = {"max_seq_length": 32, "per_device_train_batch_size": 1}

# name: what differs from the Llama of SIZES, and from a run of 2 rows of 256 tokens on one card
RUNS = {
    "plain": ({}, {}),
    "2 micro batches": ({}, {"global_batch_size": 4}),
    "recompute": ({}, FULL),
    "recompute of attention": ({}, ATTENTION),
    "recompute of its core": ({}, CORE),
    "tied, with biases": (QWEN2, {}),
    "mistral": ({"model_type": "mistral"}, {}),
    "experts": (MIXTRAL, {}),
    "8192 positions": (LLAMA3, {}),
    "optimizer offloaded": ({}, {"offload_optimizer": "device"}),
    "optimizer offloaded, short rows": ({"vocab_size": 16384}, {"offload_optimizer": "device", **SHORT}),
    "optimizer on the host": ({}, {"offload_optimizer": "host"}),
    "activations offloaded": (DEEP, {**FULL, **LONG}),
    "both offloaded": (DEEP, {**FULL, **LONG, "offload_optimizer": "device"}),
    "both offloaded, sequence parallel": (DEEP, {**FULL, **LONG, **SP2, "offload_optimizer": "device"}),
    "both offloaded, pipeline": (DEEP, {**FULL, **LONG, **PP2, "offload_optimizer": "device"}),
    "both offloaded, sharding": (
        DEEP,
        {**FULL, **LONG, "cards": 2, "sharding": "stage1", "offload_optimizer": "device"},
    ),
    "Ulysses": ({}, ULYSSES2),
    "ring": ({}, RING2),
    "expert parallel": (MIXTRAL, EXPERTS2),
    "data parallel": ({}, {"cards": 2}),
    "sharding stage 1": ({}, {"cards": 2, "sharding": "stage1"}),
    "sharding stage 2": ({}, {"cards": 2, "sharding": "stage2"}),
    "tensor parallel": ({}, TP2),
    "sequence parallel": ({}, SP2),
    "sequence parallel, recompute": ({}, {**SP2, **FULL}),
    "sequence parallel, recompute of attention": ({}, {**SP2, **ATTENTION}),
    "pipeline": ({}, PP2),
    "pipeline, recompute": ({}, {**PP2, **FULL}),
    "pipeline of unequal stages": ({"num_hidden_layers": 5}, PP2),
    "tensor x data": ({}, {**TP2, "cards": 4}),
    "sequence x sharding": ({}, {**SP2, "cards": 4, "sharding": "stage1"}),
    "sequence x pipeline": ({}, {**SP2, **PP2, "cards": 4}),
    "pipeline x sharding": ({}, {**PP2, "cards": 4, "sharding": "stage1", "global_batch_size": 16}),
    "DualPipeV": ({}, IN_V),
    "pipeline of 4 stages": ({}, PP4),
    "pipeline of 4 stages of 2 parts": ({"num_hidden_layers": 8}, VPP),
    "pipeline of 4 stages of 4 parts": ({"num_hidden_layers": 16}, {**VPP, "virtual_pp_degree": 4}),
    "pipeline of 4 stages of 2 parts, recompute": ({"num_hidden_layers": 8}, {**VPP, **FULL}),
}
QUICK = ("plain",)  # these run by default
# Against dry runs, which need one process. In real runs of stage 3, assign's copies are in host memory.
DRY_RUNS = {
    "Ulysses, recompute": ({}, {**ULYSSES2, **FULL}),
    "Ulysses, recompute of the core": ({}, {**ULYSSES2, **CORE}),
    "Ulysses of 3 with uneven heads": ({}, {"cards": 3, "sep_parallel_degree": 3, "max_seq_length": 255}),
    "Ulysses of 4 with 2 key heads": ({}, {"cards": 4, "sep_parallel_degree": 4}),
    "Ulysses x sequence parallel": ({}, {**SP2, **ULYSSES2, "cards": 4}),
    "ring, recompute of attention": ({}, {**RING2, **ATTENTION}),
    "ring, activations offloaded": (DEEP, {**FULL, **LONG, **RING2}),
    "ring of 4": ({}, {"cards": 4, "context_parallel_degree": 4}),
    "ring of 4, narrow layers": ({"intermediate_size": 256}, {"cards": 4, "context_parallel_degree": 4}),
    "ring x sharding": ({}, {**RING2, "cards": 4, "sharding": "stage1"}),
    "ring x Ulysses": ({}, HYBRID),
    "shared expert": (QWEN2_MOE, {}),
    "shared expert, pipeline": (QWEN2_MOE, PP2),
    "shared expert, recompute": (QWEN2_MOE, FULL),
    "shared expert, expert parallel": (QWEN2_MOE, EXPERTS2),
    "many tokens of experts": (MIXTRAL, {"per_device_train_batch_size": 16}),
    "expert parallel, many tokens": (MIXTRAL, {**EXPERTS2, "per_device_train_batch_size": 16}),
    "expert parallel, recompute": (MIXTRAL, {**EXPERTS2, **FULL}),
    "expert parallel, Ulysses": (MIXTRAL, {**EXPERTS2, **ULYSSES2}),
    "expert parallel, ring x sharding": (MIXTRAL, {**EXPERTS2, **RING2, "cards": 4, "sharding": "stage1"}),
    "expert parallel x sharding": (MIXTRAL, {**EXPERTS2, "cards": 4, "sharding": "stage1"}),
    "DualPipeV, recompute": ({}, {**IN_V, **FULL}),
    "DualPipeV, many tokens": (
        {"num_hidden_layers": 8},
        {**IN_V, "per_device_train_batch_size": 8, "global_batch_size": 64},
    ),
    "DualPipeV x sharding": ({}, {**IN_V, "cards": 4, "sharding": "stage1", "global_batch_size": 16}),
    "DualPipeV of 4 stages": ({"num_hidden_layers": 8}, {**PP4, "pipeline_schedule": "dualpipev"}),
    "sharding stage 3 of small weights": ({}, STAGE3),
    "sharding stage 3": (CUT, STAGE3),
    "sharding stage 3, recompute": (CUT, {**STAGE3, **FULL}),
    "sharding stage 3, recompute of attention": (CUT, {**STAGE3, **ATTENTION}),
    "sharding stage 3, 2 micro batches": (CUT, {**STAGE3, "global_batch_size": 8}),
    "sharding stage 3 on 4 cards": (CUT, {**STAGE3, "cards": 4}),
    "sharding stage 3 of separate projections": ({**CUT, "model_type": "qwen2"}, STAGE3),
}


def of_run(name: str, folder: Path) -> tuple[ModelShape, Layout, dict[str, Path]]:
    fields, differences = {**RUNS, **DRY_RUNS}[name]
    inputs = run_inputs.inputs(folder, **{**SIZES, **fields})
    usual = {"cards": 1, "max_seq_length": 256, "per_device_train_batch_size": 2}
    return ModelShape.of(str(inputs["model_name_or_path"])), Layout(**{**usual, **differences}), inputs


def measured(shape: ModelShape, layout: Layout, inputs: dict[str, Path], folder: Path) -> int:
    """The most that one device of a run held: of two steps, the second of which has all states."""
    flags = {
        "input_dir": inputs["input_dir"],
        "data_cache": inputs["data_cache"],
        "output_dir": folder / "out",
    }
    flags |= {"nproc": layout.cards, "max_steps": 2, "do_eval": "false", "save_strategy": "no"}
    argv = [sys.executable, str(SCRIPT), *layout.arguments(shape), *run_inputs.words(flags)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    records = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return max(record["peak_memory"] for record in records if "peak_memory" in record)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_the_prediction_is_within_3_percent_of_the_device(name, tmp_path):
    shape, layout, inputs = of_run(name, tmp_path)
    layout.check(shape)
    measured_bytes = measured(shape, layout, inputs, tmp_path)
    assert peak(shape, layout).peak_memory_bytes == pytest.approx(measured_bytes, rel=0.03)


@pytest.mark.parametrize("name", DRY_RUNS)
def test_the_prediction_is_within_3_percent_of_a_dry_run(name, tmp_path):
    shape, layout, inputs = of_run(name, tmp_path)
    layout.check(shape)
    assert peak(shape, layout).peak_memory_bytes == pytest.approx(
        followed(shape, layout, inputs, tmp_path), rel=0.03
    )


@pytest.mark.parametrize(
    ("model", "differences"),
    [
        ("llama2-7b", {"cards": 1}),
        ("llama2-13b", {"cards": 8, "tensor_parallel_degree": 8, "sequence_parallel": True}),
        ("llama2-13b", {"cards": 32, "tensor_parallel_degree": 8, "sequence_parallel": True,
                        "sharding": "stage1", "recompute": True}),
    ],
)  # fmt: skip
def test_the_prediction_is_within_3_percent_of_a_dry_run_at_full_size(model, differences, tmp_path):
    """The program itself on a device without memory, which holds what it would hold at these sizes."""
    sizes = ModelShape.of(model)
    inputs = run_inputs.inputs(tmp_path, **{name: getattr(sizes, name) for name in run_inputs.LLAMA})
    shape = ModelShape.of(str(inputs["model_name_or_path"]))
    layout = Layout(max_seq_length=4096, **differences)
    assert peak(shape, layout).peak_memory_bytes == pytest.approx(
        followed(shape, layout, inputs, tmp_path), rel=0.03
    )


@pytest.mark.parametrize(
    ("length", "degrees"),
    [
        (32768, {"context_parallel_degree": 2}),
        (65536, {"sep_parallel_degree": 4}),
        (131072, {"context_parallel_degree": 4, "sep_parallel_degree": 2}),
    ],
)
def test_activations_of_split_sequences_are_those_of_a_dry_run(length, degrees, tmp_path):
    """Two layers as wide as those of Llama 3 8B, with a small vocabulary, whose loss does not hide them."""
    sizes = ModelShape.of("llama3.1-8b")
    widths = {name: getattr(sizes, name) for name in run_inputs.LLAMA}
    widths |= {"num_hidden_layers": 2, "vocab_size": 1024, "num_key_value_heads": sizes.num_key_value_heads}
    inputs = run_inputs.inputs(tmp_path, **widths)
    (inputs["input_dir"] / "more.txt").write_text("a dry run reads text, too. " * (length // 4))
    shape = ModelShape.of(str(inputs["model_name_or_path"]))
    ranks = math.prod(degrees.values())
    layout = Layout(cards=ranks, max_seq_length=length, **degrees)
    layout.check(shape)
    memory, states = peak(shape, layout), peak(shape, layout).stages[0].moments[0].bytes
    run_bytes = followed(shape, layout, inputs, tmp_path)
    assert memory.peak_memory_bytes == pytest.approx(run_bytes, rel=0.03)
    whole = peak(shape, Layout(cards=1, max_seq_length=length)).peak_memory_bytes
    assert run_bytes - states == pytest.approx((whole - states) / ranks, rel=0.1)


@pytest.mark.parametrize("model", ["llama2-70b", "llama3.2-1b", "qwen2-0.5b", "mixtral-8x7b", "mistral-7b"])
def test_the_weights_of_all_stages_are_those_of_the_model(model):
    shape = ModelShape.of(model)
    assert sum(weights(shape, Layout(cards=1), 0)) == shape.parameters
    if model == "llama2-70b":
        layout = Layout(cards=4, pipeline_parallel_degree=4)
        assert sum(sum(weights(shape, layout, stage)) for stage in range(4)) == shape.parameters


def test_weights_go_to_the_card_that_has_fewest():
    assert shares((1, 5, 2, 2), 2, largest_first=True) == [5]
    assert shares((1, 5, 2, 2), 2, largest_first=False) == [1, 2, 2]


def test_cards_without_weights_change_nothing():
    shape = ModelShape.of("llama2-7b")
    assert shares((1, 5, 2), 1_000_000, largest_first=True) == [5]
    count = len(weights(shape, Layout(cards=1), 0))
    peaks = [
        peak(shape, Layout(cards=cards, sharding="stage2", global_batch_size=8 * count))
        for cards in (count, 8 * count)
    ]
    assert peaks[0] == peaks[1]


def test_the_parts_of_every_moment_add_up():
    layout = Layout(cards=32, tensor_parallel_degree=8, pipeline_parallel_degree=4, global_batch_size=64)
    memory = peak(ModelShape.of("llama2-70b"), layout)
    for stage in memory.stages:
        assert [moment.phase for moment in stage.moments][:2] == ["between steps", "forward, last layer"]
        for moment in stage.moments:
            assert sum(moment.parts.values()) == moment.bytes
    assert memory.fullest.stage == 0  # 4 micro batches are under way there
    states = memory.stages[0].moments[0].bytes
    assert states == pytest.approx(18 * sum(weights(ModelShape.of("llama2-70b"), layout, 0)), rel=0.01)


@pytest.mark.parametrize(("rows", "mib"), [(1, 12_351), (2, 11_314)])
def test_large_logits_are_not_kept(rows, mib):
    """The dry runs of docs/memory.md: with more tokens, the trainer computes the loss without logits."""
    shape = replace(ModelShape.of("llama3.2-1b"), num_hidden_layers=2)
    layout = Layout(1, max_seq_length=4096, per_device_train_batch_size=rows)
    assert layout.has_logits(shape) == (rows == 1)
    assert peak(shape, layout).peak_memory_bytes / 2**20 == pytest.approx(mib, rel=1e-3)
