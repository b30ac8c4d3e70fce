"""A dry run follows the program: the same operators and the same memory as the real run, and no number."""

import dataclasses
from pathlib import Path

import pytest
import run_inputs
from places import ROOT

from llm_npu.training.dry_run import journal
from paddle_fused.paddle_release import before

SCRIPT = ROOT / "scripts" / "run_llama_npu.py"
ARGUMENTS = {
    "max_steps": 2,
    "max_seq_length": 32,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "do_eval": "false",
    "disable_tqdm": "true",
}


def trained(run_python, folder: Path, dry: bool, inputs: dict, **arguments):
    """The process of a run of the script, and its journal."""
    folder.mkdir()
    words = run_inputs.words({**ARGUMENTS, **inputs, **arguments, "output_dir": folder / "out"})
    variables = {"VIRTUAL_NPU_DRY": str(int(dry)), "VIRTUAL_NPU_JOURNAL": str(folder / "journal")}
    done = run_python(SCRIPT, *words, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, journal.read(folder / "journal")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return run_inputs.inputs(tmp_path_factory.mktemp("inputs"), hidden_size=128)


def compare(run_python, tmp_path, inputs, **arguments):
    """Runs the script for real and dry; checks that the steps are the same. Returns what the dry one said."""
    _, real = trained(run_python, tmp_path / "real", False, inputs, **arguments)
    done, dry = trained(run_python, tmp_path / "dry", True, inputs, **arguments)
    assert len(real.steps) == len(dry.steps) == ARGUMENTS["max_steps"]
    for real_step, other in zip(real.steps, dry.steps, strict=True):
        assert [call.name for call in other.calls] == [call.name for call in real_step.calls]
        assert [_without_memory(call) for call in other.calls] == [
            _without_memory(call) for call in real_step.calls
        ]
        assert other.flops == real_step.flops > 0
    # What the text generated before the training has left is gone by the second step.
    # Paddle before 3.3 copies, which a real run notes before the copy's memory is taken and a dry one after.
    left_out = {"assign"} if before(3, 3) else set()
    held = [
        [call.allocated for call in run.steps[1].calls if call.name not in left_out] for run in (real, dry)
    ]
    assert held[0] == held[1]
    assert dry.peak_bytes == real.peak_bytes
    return done


def _without_memory(call: journal.Call) -> journal.Call:
    return dataclasses.replace(call, allocated=0)


@pytest.mark.slow
def test_a_dry_run_records_its_steps(run_python, tmp_path, inputs):
    done, recorded = trained(run_python, tmp_path / "dry", True, inputs)
    assert len(recorded.steps) == ARGUMENTS["max_steps"]
    assert "nothing computed" in done.stdout


@pytest.mark.slow
def test_a_dry_run_is_the_real_one_without_its_numbers(run_python, tmp_path, inputs):
    done = compare(run_python, tmp_path, inputs)
    assert "nothing computed" in done.stdout
    assert "loss     " not in done.stdout and "tokens/s" not in done.stdout
    out = tmp_path / "dry" / "out"
    written = [path.name for path in out.rglob("*") if path.is_file()]
    assert not [
        name for name in written if name.endswith((".safetensors", ".png")) or name == "metrics.jsonl"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"bf16": "false", "optim": "adamw"},
        {"fp16": "true"},
        {"disable_fused_options": "true"},
        # Beside PaddleFormers a dry run is 8 KiB of 6 MB off while layers are recomputed.
        pytest.param({"recompute": "true"}, marks=pytest.mark.paddlenlp),
        pytest.param(
            {"recompute": "true", "offload_activations": "all", "offload_optimizer": "device"},
            marks=pytest.mark.paddlenlp,
        ),
    ],
    ids=["float32", "float16", "unfused", "recompute", "offload"],
)
def test_other_settings_are_followed_alike(run_python, tmp_path, inputs, arguments):
    compare(run_python, tmp_path, inputs, **arguments)


@pytest.mark.slow
def test_offload_lowers_the_peak(run_python, tmp_path):
    """By the master weights and moments, then by the inputs of all layers but one."""
    sizes = {"hidden_size": 128, "num_hidden_layers": 8, "max_position_embeddings": 2048}
    (folder := tmp_path / "inputs").mkdir()
    inputs = run_inputs.inputs(folder, **sizes)
    long = {"max_seq_length": 2048, "recompute": "true", "use_fused_linear_cross_entropy": "true"}
    offloads = ({}, {"offload_optimizer": "host"}, {"offload_activations": "all"})
    peaks = []
    for number, offload in enumerate(offloads):
        _, recorded = trained(run_python, tmp_path / str(number), True, inputs, **long, **offload)
        peaks.append(recorded.peak_bytes)
    whole, optimizer, activations = peaks
    assert whole - optimizer > 1 << 20
    assert whole - activations == pytest.approx(7 * 2 * 2048 * 128 * 2, rel=0.2)  # bytes


@pytest.mark.slow
@pytest.mark.paddlenlp
def test_experts_get_equally_many_tokens(run_python, tmp_path):
    """A real router chooses otherwise, which changes no operator and no sum over experts."""
    (folder := tmp_path / "inputs").mkdir()
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    inputs = run_inputs.inputs(folder, hidden_size=128, **experts)
    _, real = trained(run_python, tmp_path / "real", False, inputs)
    done, dry = trained(run_python, tmp_path / "dry", True, inputs)
    assert "is assumed to be balanced" in done.stdout
    tokens = ARGUMENTS["per_device_train_batch_size"] * ARGUMENTS["max_seq_length"] * 2  # for each of two
    for real_step, other in zip(real.steps, dry.steps, strict=True):
        assert [call.name for call in other.calls] == [call.name for call in real_step.calls]
        assert other.flops == pytest.approx(real_step.flops, rel=1e-3)
        rows = {shape for call in other.calls if call.name == "split" for _, shape in call.outputs}
        assert rows == {(tokens // 4, 128), (tokens // 4, 96)}
    assert dry.peak_bytes == pytest.approx(real.peak_bytes, rel=1e-2)


@pytest.mark.slow
@pytest.mark.paddlenlp  # PaddleFormers' rotary embedding multiplies matrices, too
def test_seven_billion_parameters_take_addresses_only(run_python, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    (text / "words.txt").write_text("a dry run reads text, too. " * 20000)
    arguments = {
        "model_name_or_path": "llama2-7b",
        "input_dir": text,
        "data_cache": tmp_path,
        "max_seq_length": 4096,
        "per_device_train_batch_size": 1,
        "max_steps": 1,
        "gradient_accumulation_steps": 1,
    }
    program = tmp_path / "measured.py"
    program.write_text(MEASURED.format(script=str(SCRIPT)))
    words = run_inputs.words(ARGUMENTS | arguments | {"output_dir": tmp_path / "out"})
    done = run_python(program, *words, VIRTUAL_NPU_DRY="1", VIRTUAL_NPU_JOURNAL=str(tmp_path / "journal"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stderr.rpartition("resident ")[2].split()[0]) < 4 * 2**30
    recorded = journal.read(tmp_path / "journal")
    parameters = 6_738_415_616
    assert (
        16 * parameters < recorded.peak_bytes < 20 * parameters
    )  # weights, gradients, AdamW's state, activations
    products = sum(call.flops for call in recorded.steps[0].calls if call.kind == "matmul")
    embedded = 32000 * 4096
    assert products == 6 * 4096 * (parameters - embedded - 65 * 4096)


MEASURED = """
import resource, runpy, sys
sys.argv[0] = {script!r}
try:
    runpy.run_path({script!r}, run_name="__main__")
finally:
    print("resident", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
"""


REFUSED = """
import paddle

paddle.set_device("npu")
known, unknown = paddle.to_tensor([3, 0, 2]), paddle.randn([64, 1024])
assert (known + 1).tolist() == [4, 1, 3] and paddle.nonzero(known).tolist() == [[0], [2]]
assert float(unknown.sum()) == 0.0 and bool(paddle.isfinite(unknown.mean()))
for use in (
    lambda: paddle.nonzero(unknown),
    lambda: paddle.masked_select(unknown, unknown > 0),
    lambda: paddle.unique(unknown),
    lambda: bool((unknown > 0).any()),
    lambda: unknown.argmax().item(),
):
    try:
        use()
    except NotImplementedError as error:
        print(str(error).split("Dry mode")[0])
"""


@pytest.mark.slow
def test_what_values_decide_is_refused_by_name(run_program):
    done = run_program(REFUSED, VIRTUAL_NPU_DRY="1")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert len(lines) == 5
    for name, line in zip(("nonzero", "masked_select", "unique", "any", "argmax"), lines, strict=True):
        assert f"'{name}'" in line


@pytest.mark.slow
def test_what_would_be_measured_is_refused(run_python, tmp_path, inputs):
    words = run_inputs.words({**ARGUMENTS, **inputs, "peak_tflops": "measured", "output_dir": tmp_path})
    done = run_python(SCRIPT, *words, VIRTUAL_NPU_DRY="1")
    assert done.returncode == 2
    assert "error: --peak_tflops measured" in done.stderr and "VIRTUAL_NPU_DRY=1" in done.stderr


def test_a_file_that_is_no_journal_is_named(tmp_path):
    file = tmp_path / "journal"
    file.write_text('{"event":"mark","text":"step begins"}\nnothing\n')
    with pytest.raises(ValueError, match=r"line 2, .*'nothing"):
        journal.read(file)


@pytest.mark.slow
def test_the_lives_of_allocations_are_told(run_program, tmp_path):
    program = """
    import paddle

    paddle.set_device("npu")
    kept = paddle.ones([256, 1024])
    gone = kept + 1
    del gone
    paddle.tanh(kept)
    """
    done = run_program(program, VIRTUAL_NPU_JOURNAL=str(tmp_path / "journal"))
    assert done.returncode == 0, done.stderr
    kept, gone, last = journal.read(tmp_path / "journal").lives
    assert [life.bytes for life in (kept, gone, last)] == [256 * 1024 * 4] * 3
    assert kept.by == "full" and last.by == "tanh"
    assert kept.begin < gone.begin < gone.end < last.begin
