"""The training script with the arguments that look at its numbers and its speed."""

import itertools

import pytest
import run_inputs
from places import ROOT

from llm_npu.numerics import dumped
from llm_npu.training import metrics

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts/run_llama_npu.py"
SIZES = {
    "max_seq_length": 32,
    "max_steps": 4,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "do_eval": "false",
    "logging_steps": 1,
}

# Runs the script ARGV[1:] while the host kernel of SwiGLU is off by 20 %.
WRONG_KERNEL = """
import runpy, sys
import virtual_npu
virtual_npu.activate()
import paddle_fused
paddle_fused.swiglu
from dataclasses import replace
from paddle_fused.dispatch import OPERATORS
operator = OPERATORS["swiglu"]
for name, backend in operator.backends.items():
    if name != "composed":
        run = backend.run
        operator.backends[name] = replace(backend, run=lambda *arguments, run=run: run(*arguments) * 1.2)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return run_inputs.words({**run_inputs.inputs(tmp_path_factory.mktemp("inputs")), **SIZES})


@pytest.fixture(scope="module")
def runs(run_python, inputs, tmp_path_factory):
    """(what it printed, its folder) of two runs of one command, the second with one thread."""
    done = []
    for threads in ("2", "1"):
        folder = tmp_path_factory.mktemp("run")
        flags = (
            "--deterministic --dump_tensors 1:2 --compare_with composed --peak_tflops measured "
            "--report_to visualdl"
        )
        result = run_python(
            SCRIPT, *inputs, *flags.split(), "--output_dir", folder / "out", OMP_NUM_THREADS=threads
        )
        assert result.returncode == 0, result.stdout + result.stderr
        done.append((result.stdout, folder / "out"))
    return done


def test_two_runs_have_the_same_bits_whatever_the_threads(runs):
    (output, out), (again, other) = runs
    kept = [
        [
            (record["step"], record["loss"], record["grad_norm"])
            for record in metrics.read(folder / metrics.FILE)
            if "loss" in record
        ]
        for folder in (out, other)
    ]
    assert kept[0] == kept[1] and len(kept[0]) == 4
    digests = [[line for line in text.splitlines() if line.startswith("bits ")] for text in (output, again)]
    assert digests[0] == digests[1] and len(digests[0]) == 2
    assert "note     deterministic: " in output


def test_dumps_of_both_runs_are_equal(runs, run_python):
    (_, out), (_, other) = runs
    places = dumped.dumps(out / "tensors")
    assert list(places) == ["step-1/rank-0", "step-2/rank-0"]
    result = run_python("-m", "llm_npu.numerics", "compare", out / "tensors", other / "tensors")
    assert result.returncode == 0, result.stdout + result.stderr
    count = len(places["step-1/rank-0"])
    assert f"{count:,} tensors compared, {count:,} bit-identical" in result.stdout
    names = list(places["step-1/rank-0"])
    assert not any("(call 2)" in name for name in names)  # the first micro batch alone


def test_the_ways_part_nowhere(runs):
    lines = runs[0][0].splitlines()
    at = lines.index("compare  the first batch with composed:")
    assert "no difference exceeds rounding" in "\n".join(lines[at : at + 4])
    assert not any(line.startswith("ran ") and ": composed" in line for line in lines)


def test_the_line_of_a_step_and_the_summary(runs):
    output, out = runs[0]
    assert "MFU" in output and "data" in output
    record = metrics.read(out / metrics.FILE)[0]
    assert {"mfu", "step_s", "data_s", "grad_norm", "peak_memory"} <= record.keys()
    assert "exposed_s" not in record
    assert 0 <= record["data_s"] <= record["step_s"]
    (peak,) = (line for line in output.splitlines() if line.startswith("MFU      "))
    assert "1024 x 1024 products in bfloat16" in peak
    assert (out / "metrics.png").read_bytes().startswith(b"\x89PNG")


def test_visualdl_has_every_figure(runs):
    from visualdl import LogReader

    (file,) = (runs[0][1] / "runs").rglob("vdlrecords.*.log")
    tags = set(LogReader(file_path=str(file)).get_tags()["scalar"])
    assert {"train/loss", "train/tokens_per_s", "train/grad_norm", "train/mfu"} <= tags, tags


def test_the_wrong_kernel_is_found(run_python, inputs, tmp_path):
    result = run_python(
        "-c", WRONG_KERNEL, SCRIPT, *inputs, "--compare_with", "upstream", "--output_dir", tmp_path / "out"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    at = lines.index("compare  the first batch with upstream:")
    excerpt = "\n".join(lines[at : at + 20])
    assert "first difference beyond rounding: the output of llama.layers.0.mlp.down_proj" in excerpt
    assert "fused there: swiglu of llama.layers.0.mlp" in excerpt


def test_a_nan_stops_the_run_with_its_operator(run_python, inputs, tmp_path):
    flags = ["--check_nan_inf", "--learning_rate", "1e30", "--min_learning_rate", "0", "--max_grad_norm", "0"]
    result = run_python(SCRIPT, *inputs, *flags, "--output_dir", tmp_path / "out")
    assert result.returncode == 2, result.stdout + result.stderr
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("error: "))
    assert "llama" in line and (" NaN" in line or " infinities" in line)


FAMILIES = {
    "qwen2": {},
    "mistral": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    },
}


@pytest.fixture(scope="module")
def of_family(tmp_path_factory):
    """A function that gives the arguments for a very small model of a family."""

    def arguments(family: str) -> list[str]:
        folder = tmp_path_factory.mktemp(family)
        paths_of_inputs = run_inputs.inputs(folder, model_type=family, **FAMILIES[family])
        return run_inputs.words({**paths_of_inputs, **SIZES, "max_steps": 1, "output_dir": folder / "out"})

    return arguments


def compared_with_upstream(result) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    at = lines.index("compare  the first batch with upstream:")
    return "\n".join(itertools.takewhile(lambda line: line.startswith(" "), lines[at + 1 :]))


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_part_nowhere_from_upstream(family, run_python, of_family):
    output = compared_with_upstream(run_python(SCRIPT, *of_family(family), "--compare_with", "upstream"))
    assert "no difference exceeds rounding" in output
    assert ("other experts" in output) == (family in ("mixtral", "qwen2_moe")), output


def test_the_wrong_kernel_is_found_in_a_mixture(run_python, of_family):
    result = run_python("-c", WRONG_KERNEL, SCRIPT, *of_family("mixtral"), "--compare_with", "upstream")
    output = compared_with_upstream(result)
    assert (
        "first difference beyond rounding: the output of mixtral.layers.0.block_sparse_moe.experts." in output
    ), output
    assert "fused there: moe of mixtral.layers.0.block_sparse_moe, swiglu of mixtral.layers.0" in output, (
        output
    )
