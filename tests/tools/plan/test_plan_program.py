"""The generated operations of a step are those that the real program asks of the device in a dry run."""

from collections import Counter

import pytest
import run_inputs
from dry_runs import flops, operation
from places import ROOT

from llm_npu.core import cards
from llm_npu.plan import cost
from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape
from llm_npu.plan.step_model import program
from llm_npu.plan.step_model.stage import causal
from llm_npu.training.dry_run import journal

SCRIPT = ROOT / "scripts" / "run_llama_npu.py"
LENGTH, ROWS = 512, 2
RUN = {
    "max_steps": 2,  # the second has no first-time work
    "max_seq_length": LENGTH,
    "per_device_train_batch_size": ROWS,
    "do_eval": "false",
    "disable_tqdm": "true",
}
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return run_inputs.inputs(tmp_path_factory.mktemp("inputs"), **SIZES)


def followed(run_python, tmp_path, inputs, **arguments) -> journal.RecordedStep:
    """The second step of the script's first rank, in a dry run."""
    words = run_inputs.words({**RUN, **inputs, **arguments, "output_dir": tmp_path / "out"})
    done = run_python(SCRIPT, *words, VIRTUAL_NPU_DRY="1", VIRTUAL_NPU_JOURNAL=str(tmp_path / "journal"))
    assert done.returncode == 0, done.stdout + done.stderr
    return journal.read(tmp_path / ("journal.0" if "nproc" in arguments else "journal")).steps[1]


def generated(inputs, **fields) -> tuple[list, list]:
    """The operations of a micro batch and of the rest of the step, of the same run."""
    shape = ModelShape.of(str(inputs["model_name_or_path"]))
    sizes = {"max_seq_length": LENGTH, "per_device_train_batch_size": ROWS}
    layout = Layout(**{"cards": 1, **sizes, **fields})
    layout.check(shape)
    micro, pairs = program.micro_batch(shape, layout), causal(layout.max_seq_length)
    # As journals count: attention to all tokens.
    micro = [op._replace(flops=op.flops / pairs) if op.kind == "attention" else op for op in micro]
    return micro, program.once_a_step(shape, layout)


def moved(operations, *names):
    return sum(op.bytes * op.times for op in operations if op.name.endswith(names))


def called(step, *names):
    return sum(call.bytes for call in step.calls if call.name in names)


def sent(collectives) -> Counter:
    """How often what is sent: (collective, bytes) -> times."""
    counts = Counter()
    for kind, payload, times in collectives:
        counts[kind, int(payload)] += times
    return counts


@pytest.mark.slow
def test_of_one_rank(run_python, tmp_path, inputs):
    step = followed(run_python, tmp_path, inputs, gradient_accumulation_steps=2)
    micro, rest = generated(inputs, global_batch_size=2 * ROWS)
    for kind in ("matmul", "attention"):
        assert 2 * flops(micro, kind) == sum(call.flops for call in step.calls if call.kind == kind)
    same = {
        "norm": ("rms_norm_npu", "rms_norm_npu_grad"),
        "swiglu": ("swiglu", "swiglu_grad"),
        "split": ("split", "concat"),
    }
    for name, call in same.items():
        assert 2 * moved(micro, name) == pytest.approx(called(step, *call), rel=0.01), name
    assert moved(rest, "adam") == pytest.approx(called(step, "adamw"), rel=0.1)
    vectors = sum(op.bytes * op.times for op in micro if op.kind == "vector")
    counted = sum(call.bytes for call in step.calls if call.kind == "vector")
    assert 2 * vectors + moved(rest, "clip", "clear") == pytest.approx(counted, rel=0.15)


@pytest.mark.slow
def test_recorded_calls_take_as_long_as_generated_operations(run_python, tmp_path):
    """As docs/planning.md has it, by kind and together; operations large enough not to be all launching."""
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 2048}
    inputs = run_inputs.inputs(tmp_path, **sizes, num_attention_heads=16, num_key_value_heads=8)
    step = followed(run_python, tmp_path, inputs, max_seq_length=2048, gradient_accumulation_steps=2)
    batches = {"max_seq_length": 2048, "global_batch_size": 2 * ROWS}
    micro, rest = generated(inputs, **batches)

    def seconds(operations) -> dict[str, float]:
        return cost.tally(operations, Layout(cards=1), cards.card("910b"), cost.fitted()).compute

    generated_seconds = seconds([*micro, *micro, *rest])
    recorded = seconds([operation(call) for call in step.calls])
    differences = {kind: generated_seconds[kind] / recorded[kind] - 1 for kind in generated_seconds}
    stated = {"matmul": 0.01, "attention": 0.0, "vector": -0.14, "optimizer": -0.08}
    assert differences == pytest.approx(stated, abs=0.02)
    assert sum(generated_seconds.values()) / sum(recorded.values()) - 1 == pytest.approx(-0.04, abs=0.02)


@pytest.mark.slow
def test_of_recompute(run_python, tmp_path, inputs):
    step = followed(run_python, tmp_path, inputs, recompute="true", recompute_granularity="full")
    micro, rest = generated(inputs, recompute=True)
    for kind in ("matmul", "attention"):
        assert flops(micro, kind) == sum(call.flops for call in step.calls if call.kind == kind), kind
    vectors = sum(op.bytes * op.times for op in micro if op.kind == "vector")
    counted = sum(call.bytes for call in step.calls if call.kind == "vector")
    assert vectors + moved(rest, "clip", "clear") == pytest.approx(counted, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True])
def test_of_tensor_parallel_ranks(run_python, tmp_path, inputs, sequence):
    parallel = {"tensor_parallel_degree": 2, "sequence_parallel": sequence}
    words = {"nproc": 2, **parallel, "sequence_parallel": str(sequence).lower()}
    step = followed(run_python, tmp_path, inputs, **words)
    micro, _ = generated(inputs, cards=2, **parallel)
    for kind in ("matmul", "attention"):
        assert flops(micro, kind) == sum(call.flops for call in step.calls if call.kind == kind)
    planned = sent((op.collective, op.payload, op.times) for op in micro if op.kind == "collective")
    whole = LENGTH * ROWS * SIZES["hidden_size"] * 2  # what is smaller: samples, statistics, norms' gradients
    recorded = sent(
        (collective.kind, collective.payload, 1)
        for collective in step.collectives
        if collective.payload >= whole
    )
    assert planned == recorded


@pytest.mark.slow
@pytest.mark.parametrize("degree", ["sep_parallel_degree", "context_parallel_degree"])
def test_of_ranks_that_share_sequences(run_python, tmp_path, inputs, degree):
    step = followed(run_python, tmp_path, inputs, nproc=2, **{degree: 2})
    micro, rest = generated(inputs, cards=2, **{degree: 2})
    products = sum(call.flops for call in step.calls if call.kind == "matmul")
    assert flops(micro, "matmul") == products
    planned = sum(op.payload * op.times for op in micro if op.kind == "collective")
    transfers = [collective for collective in step.collectives if collective.kind in ("send", "recv")]
    if degree == "context_parallel_degree":  # a rank of an even ring receives while it sends
        transfers = [transfer for transfer in transfers if transfer.kind == "send"]
    assert planned == sum(transfer.bytes for transfer in transfers)
    (sums,) = (op for op in rest if op.kind == "collective")
    assert sums.payload == pytest.approx(
        sum(collective.bytes for collective in step.collectives if collective.kind == "all_reduce"), rel=1e-3
    )


@pytest.mark.slow
def test_of_sharded_ranks(run_python, tmp_path, inputs):
    step = followed(run_python, tmp_path, inputs, nproc=2, sharding="stage1")
    _, rest = generated(inputs, cards=2, sharding="stage1")
    for op in rest:
        if op.kind == "collective":
            payloads = [
                collective.payload for collective in step.collectives if collective.kind == op.collective
            ]
            assert sum(payloads) == pytest.approx(op.payload, rel=1e-3), op.collective
    # Whole tensors are given to one rank or the other, so that not each updates exactly half.
    updated = sum(call.bytes for call in step.calls if call.name == "adamw")
    assert moved(rest, "adam") == pytest.approx(updated, rel=0.25)
