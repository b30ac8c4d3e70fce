"""What a run with --enable_auto_parallel says: norms, whose random weights; of a pipeline, all stages."""

import re

import pytest
import run_inputs
from places import ROOT

from paddle_fused import paddle_release

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        paddle_release.before(3, 1), reason="auto-parallel has schedules of stages from Paddle 3.1 on"
    ),
]
SCRIPT = ROOT / "scripts/run_llama_npu.py"


@pytest.fixture(scope="module")
def printed(run_python, tmp_path_factory):
    """By a pipeline of two stages with a layer each, two micro batches of one row of 32 tokens."""
    folder = tmp_path_factory.mktemp("shown")
    inputs = run_inputs.words(run_inputs.inputs(folder))
    words = (
        "--nproc 2 --enable_auto_parallel --pipeline_parallel_degree 2 --per_device_train_batch_size 1 "
        "--gradient_accumulation_steps 2 --bf16 false --max_seq_length 32 --max_steps 1 --logging_steps 1 "
        f"--do_eval false --explain_parallel --output_dir {folder / 'out'}"
    )
    done = run_python(SCRIPT, *inputs, *words.split(), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stages(text: str) -> list[str]:
    """The part of each stage, up to the first line that is not indented."""
    indented = re.match(r"(?:  .*\n)+", text)[0]
    first, second = re.fullmatch(
        r"  stage 0 \(process 0\)\n(.*)  stage 1 \(process 1\)\n(.*)", indented, re.S
    ).groups()
    return [first, second]


def test_every_stage_of_a_pipeline_lists_its_parameters(printed):
    first, second = stages(printed.partition("parallel dp=1 x tp=1 x pp=2")[2].partition("\n")[2])
    whole = r"q_proj\.weight +1 x \[64, 64\] float32, whole on every process of the stage; 16,384 of 16,384"
    assert re.search(whole, first) and re.search(whole, second)
    assert "embed_tokens" in first and "embed_tokens" not in second
    assert "lm_head" in second and "lm_head" not in first


def test_every_stage_of_a_pipeline_lists_what_it_has_sent(printed):
    first, second = stages(printed.partition("communication of a step in dygraph:\n")[2])
    for part, role, other in ((first, "forward", "backward"), (second, "backward", "forward")):
        assert re.search(rf"{role} +send +of 2 +2 x 1x32x64 float32, 16,384 bytes sent", part)
        assert other not in part


def test_the_table_of_operators_has_the_layers_of_every_stage(printed):
    rows = printed.partition("backend  layers ")[2].partition("\nbackend ")[0]
    assert re.search(r"^ +llama\.layers\.0-1\.self_attn +flash_attention ", rows, re.M), printed
    assert re.search(r"^ +llama\.layers\.0-1\.\{.*_layernorm\}, llama\.norm +rms_norm ", rows, re.M), printed


def test_every_stage_proves_the_table(printed):
    for rank, norms in ((0, 2), (1, 3)):  # two in a layer, and the last one; two micro batches
        pattern = rf"rank {rank}: first step as predicted; calls: .*rms_norm by ascend {2 * norms}\b"
        assert re.search(pattern, printed), printed


def test_it_says_which_random_weights_it_has(printed):
    (line,) = (line for line in printed.splitlines() if "random weights" in line)
    assert line.startswith("note ") and "--fuse_attention_qkv false --fuse_attention_ffn false" in line


def test_its_steps_have_the_norm_of_the_gradients(printed):
    assert re.search(r"^step 1/1: loss \S+  lr \S+  norm [1-9]\S*  ", printed, re.M), printed
