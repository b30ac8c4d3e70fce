"""Runs with expert parallelism go on from checkpoints of one process and of each other, and the other way."""

import json
import shutil

import pytest
import ranks
import run_inputs
from test_resumed_runs import (
    FP32,
    HALVES,
    PROGRAM,
    SAVED,
    SOURCES,
    STEPS,
    WHOLE_BATCH,
    after,
    alone,
    arguments,  # noqa: F401  (a fixture)
)

from llm_npu.training import checkpoint

pytestmark = pytest.mark.slow
EXPERTS = f"--expert_parallel_degree 2 {HALVES} {FP32}"
OF_A_SAMPLE = f"--expert_parallel_degree 2 {WHOLE_BATCH} {FP32}"  # the ranks share every sample
CAPACITY = "--moe_expert_capacity_factor 0.75"
OVERLAPS = ("auto", "pipelined:2")
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.fixture(scope="module")
def mixtral(arguments, tmp_path_factory) -> list[str]:  # noqa: F811
    """The arguments of a very small Mixtral on a little text."""
    inputs = run_inputs.inputs(tmp_path_factory.mktemp("mixtral"), SOURCES, num_attention_heads=4, **MIXTRAL)
    return [*arguments, "--model_name_or_path", str(inputs["model_name_or_path"])]


@pytest.fixture(scope="module")
def folder(mixtral, tmp_path_factory):
    """Where the runs of two ranks are, after one of one process."""
    folder = tmp_path_factory.mktemp("runs")
    alone(mixtral, *f"{WHOLE_BATCH} {FP32}".split(), "--output_dir", folder / "one")
    without_groups = [
        ["whole", None, EXPERTS],
        ["again", "whole", EXPERTS],
        ["from one", "one", EXPERTS],
        ["dropping", None, f"{EXPERTS} {CAPACITY}"],
        *([setting, "whole", f"{EXPERTS} --expert_overlap {setting}"] for setting in OVERLAPS),
    ]
    sharded = [
        ["sharded", "one", f"{EXPERTS} --sharding stage1"],
        ["replicated", "whole", f"{HALVES} {FP32} --sharding stage1"],
    ]
    split = [
        ["tensor", "one", f"{OF_A_SAMPLE} --tensor_parallel_degree 2 --sequence_parallel true"],
        ["Ulysses", "tensor", f"{OF_A_SAMPLE} --sep_parallel_degree 2"],
    ]
    for number, runs in enumerate((without_groups, sharded, split)):  # plain data parallelism has no groups
        steps = [
            [str(folder / out), start and str(checkpoint.path_of(folder / start, SAVED)), flags]
            for out, start, flags in runs
        ]
        ranks.run(PROGRAM, 2, folder / f"program-{number}", json.dumps(steps), *mixtral)
    return folder


@pytest.mark.parametrize("run", ["again", *OVERLAPS])
def test_the_same_mesh_goes_on_bit_for_bit(folder, run):
    assert after(folder / run) == after(folder / "whole")
    for file in ("model.safetensors", "optimizer.safetensors"):
        first, other = (checkpoint.path_of(folder / out, STEPS) / file for out in ("whole", run))
        assert first.read_bytes() == other.read_bytes(), file


@pytest.mark.parametrize(
    "start, out",
    [
        *(("one", out) for out in ("from one", "sharded", "tensor")),
        ("whole", "replicated"),
        ("tensor", "Ulysses"),
    ],
)
def test_another_mesh_goes_on_to_rounding(folder, start, out):
    assert after(folder / out) == pytest.approx(after(folder / start), rel=1e-6)


def test_ranks_drop_the_tokens_that_micro_batches_drop(folder, mixtral):
    """A capacity counts the tokens of a micro batch on a rank."""
    flags = f"{HALVES} --gradient_accumulation_steps 2 {FP32} {CAPACITY} --output_dir".split()
    alone(mixtral, *flags, folder / "dropping alone")
    assert after(folder / "dropping") == pytest.approx(after(folder / "dropping alone"), rel=1e-6)
    assert after(folder / "dropping") != pytest.approx(after(folder / "whole"), rel=1e-4)


def test_one_process_goes_on_from_many(folder, mixtral):
    back = folder / "back"
    shutil.copytree(checkpoint.path_of(folder / "whole", SAVED), checkpoint.path_of(back, SAVED))
    alone(mixtral, *f"{WHOLE_BATCH} {FP32} --resume_from_checkpoint --output_dir".split(), back)
    assert after(back) == pytest.approx(after(folder / "whole"), rel=1e-6)
