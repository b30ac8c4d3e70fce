"""One rank of a dry run stands for all: it calls and sends what it does among real ranks."""

import json
from pathlib import Path

import pytest
import run_inputs
from places import ROOT

from llm_npu.launch import fake_process_group
from llm_npu.training.dry_run import journal

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts" / "run_llama_npu.py"
ARGUMENTS = {
    "max_steps": 2,
    "max_seq_length": 32,
    "per_device_train_batch_size": 2,
    "do_eval": "false",
    "disable_tqdm": "true",
}
TENSOR = {"nproc": 2, "tensor_parallel_degree": 2, "sequence_parallel": "true"}
SHARDED = {"nproc": 2, "sharding": "stage1"}
RING = {"nproc": 2, "context_parallel_degree": 2}
HEADS = {"nproc": 2, "sep_parallel_degree": 2}
PIPELINE = {"nproc": 2, "pipeline_parallel_degree": 2, "gradient_accumulation_steps": 2}
IN_V = {
    **PIPELINE,
    "pipeline_schedule": "dualpipev",
    "gradient_accumulation_steps": 4,
    "num_hidden_layers": 4,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return run_inputs.inputs(tmp_path_factory.mktemp("inputs"), hidden_size=128)


def trained(run_python, folder: Path, inputs, **arguments) -> list[journal.Journal]:
    """The journals that a run of the script has left, in the order of the ranks."""
    folder.mkdir()
    dry = arguments.pop("dry")
    words = run_inputs.words({**ARGUMENTS, **inputs, **arguments, "output_dir": folder / "out"})
    done = run_python(
        SCRIPT, *words, VIRTUAL_NPU_DRY=str(int(dry)), VIRTUAL_NPU_JOURNAL=str(folder / "journal")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted(folder.glob("journal.*"), key=lambda file: int(file.suffix[1:]))
    return [journal.read(file) for file in files]


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        (TENSOR, 1),
        (SHARDED, 1),
        (PIPELINE, 2),
        pytest.param(IN_V, 2, marks=pytest.mark.paddlenlp),
        pytest.param(RING, 1, marks=pytest.mark.paddlenlp),
        pytest.param(HEADS, 1, marks=pytest.mark.paddlenlp),
    ],
    ids=["tensor", "sharding", "pipeline", "DualPipeV", "ring", "heads"],
)
def test_a_rank_alone_does_what_it_does_among_others(run_python, tmp_path, inputs, arguments, stages):
    real = trained(run_python, tmp_path / "real", inputs, dry=False, **arguments)
    alone = trained(run_python, tmp_path / "dry", inputs, dry=True, **arguments)
    assert len(real) == arguments["nproc"] and len(alone) == stages
    for real_rank, other in zip(real, alone, strict=False):
        compare(real_rank, other)


def compare(real: journal.Journal, alone: journal.Journal) -> None:
    assert len(alone.steps) == len(real.steps) == ARGUMENTS["max_steps"]
    for real_step, other in zip(real.steps, alone.steps, strict=True):
        assert [(call.name, call.inputs, call.outputs) for call in other.calls] == [
            (call.name, call.inputs, call.outputs) for call in real_step.calls
        ]
        assert other.collectives == real_step.collectives != []
    # The second step: what making the model has left is gone.
    assert max(c.allocated for c in alone.steps[1].calls) == max(c.allocated for c in real.steps[1].calls)
    assert {collective.group for collective in alone.steps[1].collectives} - {""}


@pytest.mark.paddlenlp
def test_the_memory_of_each_role_is_that_of_real_ranks(run_python, tmp_path, inputs):
    """Of 8 ranks. With sharding, ranks own different weights, so the first ranks are compared."""
    arguments = {**TENSOR, **PIPELINE, "nproc": 8, "sharding": "stage1"}
    real = trained(run_python, tmp_path / "real", inputs, dry=False, **arguments)
    alone = trained(run_python, tmp_path / "dry", inputs, dry=True, **arguments)
    report = json.loads((tmp_path / "dry" / "out" / "dry_run" / "ranks.json").read_text())
    assert "mismatch" not in report and report["collectives"] > 0
    assert [(role["name"], role["ranks"]) for role in report["roles"]] == [("stage 0", 4), ("stage 1", 4)]
    for stage, other in enumerate(alone):
        of_stage = real[4 * stage : 4 * stage + 4]
        for rank in of_stage[:2]:  # tensor parallel
            compare(rank, other)
        kinds = [[(c.kind, c.group, c.elements) for c in rank.steps[1].collectives] for rank in of_stage]
        assert all(kind == kinds[0] for kind in kinds)


ON_TWO = {
    "ring": RING,
    "experts": {"nproc": 4, "expert_parallel_degree": 4, "sharding": "stage1"},
    "overlap": {**TENSOR, "overlap": "auto"},
    "auto-parallel": {"nproc": 2, "tensor_parallel_degree": 2, "enable_auto_parallel": "true"},
}


@pytest.mark.paddlenlp
@pytest.mark.parametrize("arguments", ON_TWO.values(), ids=ON_TWO)
def test_all_ranks_match(run_python, tmp_path, inputs, arguments):
    if "expert_parallel_degree" in arguments:
        folder = tmp_path / "moe"
        folder.mkdir()
        sizes = {"num_local_experts": 8, "num_experts_per_tok": 2}
        inputs = run_inputs.inputs(folder, model_type="mixtral", hidden_size=128, **sizes)
    (dry,) = trained(run_python, tmp_path / "dry", inputs, dry=True, **arguments)
    report = json.loads((tmp_path / "dry" / "out" / "dry_run" / "ranks.json").read_text())
    assert report["ranks"] == arguments["nproc"] and "mismatch" not in report
    assert report["roles"][0]["peak_bytes"] >= dry.peak_bytes > 0


def test_more_ranks_than_there_could_be_devices(run_python, tmp_path, inputs):
    """Of 64 ranks, each with half of every layer and a 32nd of the optimizer's state."""
    arguments = {"nproc": 64, "tensor_parallel_degree": 2, "sharding": "stage1"}
    (dry,) = trained(run_python, tmp_path / "dry", inputs, dry=True, **arguments)
    sizes = {collective.group: collective.ranks for collective in dry.steps[1].collectives}
    assert sizes["tp"] == 2 and sizes["sharding"] == 32


def test_the_store_answers_for_all_partners():
    from paddle.base import core

    ranks = 1024
    server = fake_process_group.FakeStore(ranks)
    store = core.TCPStore(fake_process_group.LOCAL, server.port, False, ranks, 60)
    assert store.add("counter", 1) == ranks
    store.set("own", b"value")
    assert bytes(store.get("own")) == b"value"
    assert bytes(store.get("of another rank")) == b""
    store.wait("of another rank")
    server.shutdown()
    server.server_close()


def test_seventy_billion_parameters_on_32_ranks(run_python, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    (text / "words.txt").write_text("a dry run reads text, too. " * 20000)
    arguments = {
        "model_name_or_path": "llama2-70b",
        "data_cache": tmp_path,
        "max_steps": 1,
        "max_seq_length": 4096,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "nproc": 32,
        "tensor_parallel_degree": 8,
        "sequence_parallel": "true",
        "pipeline_parallel_degree": 4,
    }
    stages = trained(run_python, tmp_path / "dry", {"input_dir": text}, dry=True, **arguments)
    assert len(stages) == 4
    hidden, layers, parts = 8192, 20, 8
    grouped = hidden // 8  # the keys and values of a layer
    layer = 2 * hidden * hidden + 2 * hidden * grouped + 3 * hidden * 28672
    for number, stage in enumerate(stages):
        products = sum(call.flops for call in stage.steps[0].calls if call.kind == "matmul")
        head = 32000 * hidden if number == 3 else 0
        assert products == 4 * 6 * 4096 * (layers * layer + head) // parts
        sizes = {collective.group: collective.ranks for collective in stage.steps[0].collectives}
        assert (sizes["tp"], sizes["pp"]) == (8, 4)
        sent = [
            collective
            for collective in stage.steps[0].collectives
            if collective.kind == "send" and collective.dtype == "bfloat16"
        ]
        neighbours = 1 if number in (0, 3) else 2
        assert len(sent) == 4 * neighbours  # of every micro batch: activations onwards, gradients back
        assert {collective.bytes for collective in sent} == {4096 * hidden // parts * 2}
