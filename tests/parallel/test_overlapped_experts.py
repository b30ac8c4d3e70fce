"""``--expert_overlap`` changes no result beside other methods, also of runs that drop tokens."""

import json

import pytest
import ranks
import run_inputs
from test_resumed_runs import (
    FP32,
    HALVES,
    PROGRAM,
    SOURCES,
    STEPS,
    WHOLE_BATCH,
    arguments,  # noqa: F401  (a fixture)
)

from llm_npu.training import checkpoint, metrics

pytestmark = pytest.mark.slow
EXPERTS = "--expert_parallel_degree 2"
OF_A_SAMPLE = f"{WHOLE_BATCH} {FP32}"  # the ranks share every sample
CAPACITY = "--moe_expert_capacity_factor 0.75"
SERIAL, OVERLAPPED = "--expert_overlap serial", "--expert_overlap pipelined:2"
PLAIN = {"alone": f"{HALVES} {FP32}", "recompute": f"{HALVES} {FP32} --recompute true"}
METHODS = {
    "stage 1": f"{HALVES} {FP32} --sharding stage1",
    "stage 1, bfloat16": f"{HALVES} --sharding stage1",
    "tensor": f"{OF_A_SAMPLE} --tensor_parallel_degree 2 --sequence_parallel true",
    "Ulysses": f"{OF_A_SAMPLE} --sep_parallel_degree 2",
    "Ulysses, capacity": f"{OF_A_SAMPLE} --sep_parallel_degree 2 {CAPACITY}",
    "ring, capacity": f"{OF_A_SAMPLE} --context_parallel_degree 2 {CAPACITY}",
    "tensor, capacity": f"{OF_A_SAMPLE} --tensor_parallel_degree 2 --sequence_parallel true {CAPACITY}",
}
# Of losses; roundings decide which of two similar choices a capacity drops.
TOLERANCES = {"bfloat16": 1e-2, "capacity": 1e-4}
MODELS = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
        "shared_expert_intermediate_size": 64,
    },
}


@pytest.fixture(scope="module", params=MODELS)
def runs(request, arguments, tmp_path_factory):  # noqa: F811
    """A family, and where the runs of two ranks with its very small model are."""
    family, folder = request.param, tmp_path_factory.mktemp(request.param)
    fields = {"model_type": family, "num_attention_heads": 4, **MODELS[family]}
    inputs = run_inputs.inputs(folder, SOURCES, **fields)
    words = [*arguments, "--model_name_or_path", str(inputs["model_name_or_path"])]
    for number, methods in enumerate((PLAIN, METHODS)):  # plain data parallelism has no groups
        steps = [
            [str(folder / f"{name} {overlap}"), None, f"{EXPERTS} {flags} {overlap}"]
            for name, flags in methods.items()
            for overlap in (SERIAL, OVERLAPPED)
        ]
        ranks.run(PROGRAM, 2, folder / f"program-{number}", json.dumps(steps), *words)
    return family, folder


@pytest.mark.parametrize("method", PLAIN | METHODS)
def test_overlap_changes_nothing_but_the_order_of_a_sum(runs, method):
    """That of the gradient of a mixture's input, to which shared experts contribute."""
    family, folder = runs
    folders = [folder / f"{method} {overlap}" for overlap in (SERIAL, OVERLAPPED)]
    if family == "mixtral":
        for file in ("model.safetensors", "optimizer.safetensors"):
            serial, overlapped = (checkpoint.path_of(folder, STEPS) / file for folder in folders)
            assert serial.read_bytes() == overlapped.read_bytes(), file
    serial, overlapped = (run_inputs.losses(folder)[0] for folder in folders)
    assert serial[1] == overlapped[1]
    tolerance = TOLERANCES.get(method.rpartition(", ")[2], 1e-6)
    assert overlapped == pytest.approx(serial, rel=tolerance)


@pytest.mark.parametrize("method", [name for name in METHODS if name.endswith("capacity")])
def test_ranks_with_parts_of_a_sequence_drop_tokens(runs, method):
    records = metrics.read(runs[1] / f"{method} {OVERLAPPED}" / metrics.FILE)
    shares = [record["dropped_share"] for record in records if "loss" in record]
    assert len(shares) == STEPS and all(0.25 <= share < 0.9 for share in shares), shares
