"""Runs on several machines have the losses of the same mesh on one; the profile shows both kinds of links."""

import json

import pytest
import run_inputs
import virtual_machines

from llm_npu.profiling.report import summary
from llm_npu.training import metrics

pytestmark = pytest.mark.slow

STEPS = 3
RANKS = 2  # on each machine
LIMIT = 600  # seconds; eight ranks on two cores import Paddle in two minutes
METHODS = {
    "data parallel": {},
    "tensor parallel inside, sharding across": {"tensor_parallel_degree": 2, "sharding": "stage1"},
    "pipeline across": {"pipeline_parallel_degree": 2, "gradient_accumulation_steps": 2},
    "auto-parallel": {"enable_auto_parallel": True, "tensor_parallel_degree": 2},
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    fields = {"device": "virtual_npu", "max_steps": STEPS, "disable_tqdm": True}
    return run_inputs.short_run(tmp_path_factory.mktemp("inputs"), **fields)


def losses(folder):
    """Losses and gradient norms of every step."""
    return [
        (line["loss"], line["grad_norm"]) for line in metrics.read(folder / metrics.FILE) if "loss" in line
    ]


@pytest.fixture(params=[2, 4], ids=["2_machines", "4_machines"])
def machines(request):
    with virtual_machines.machines(request.param) as hosts:
        yield hosts


@pytest.mark.parametrize("method", METHODS)
def test_losses_are_those_of_one_machine(method, inputs, machines, run_python, tmp_path):
    fields = inputs | METHODS[method]
    words = run_inputs.words(fields | {"output_dir": tmp_path / "one"})
    count = str(RANKS * len(machines))
    alone = run_python(virtual_machines.SCRIPT, *words, "--nproc", count, timeout=LIMIT, OMP_NUM_THREADS="1")
    assert alone.returncode == 0, alone.stderr
    out = tmp_path / "several"
    words = run_inputs.words(fields | {"output_dir": out})
    job = virtual_machines.launch(machines, words, tmp_path / "job", ranks=RANKS)
    assert job.wait(LIMIT) == [0] * len(machines), job.text()
    assert len(losses(out)) == STEPS
    assert losses(out) == losses(tmp_path / "one")


def test_the_profile_shows_the_machines_and_both_kinds_of_links(inputs, machines, tmp_path):
    fields = inputs | {"tensor_parallel_degree": 2, "profile": "steps=2:4", "output_dir": tmp_path / "out"}
    job = virtual_machines.launch(machines, run_inputs.words(fields), tmp_path / "job", ranks=RANKS)
    assert job.wait(LIMIT) == [0] * len(machines), job.text()
    links = {}
    for trace in (tmp_path / "out").rglob("msprof_*.json"):
        for event in json.loads(trace.read_text()):
            if link := event.get("args", {}).get("link type"):
                links.setdefault(event["args"]["group"], set()).add(link)
    assert {"HCCS"} in links.values() and {"RDMA"} in links.values(), links
    named = [rank.machine.partition(" ")[2] for rank in summary.build(tmp_path / "out/profile").ranks]
    assert named == [f"({machine.address})" for machine in machines for _ in range(RANKS)]
