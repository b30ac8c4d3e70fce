"""scripts/generate.py as a user runs it."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import ranks
from places import ROOT
from tiny_models import build

from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import trained_tokenizer
from llm_npu.models import weights

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts/generate.py"
VOCABULARY = 300
TENSOR = ("--tensor_parallel_degree",)
PROMPTS = ["def ", "for each", "data[0:100:2]\t[b]x[/b]\u2028"]
MOST_SECONDS = 60  # from the kill of a rank to the end of all: an idle machine needs 2 or 3
SPEED = r"(\d+) tokens in [0-9.]+ s \([0-9.,]+ tokens/s\)"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A Llama of random weights with a tokenizer of bytes."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "text.txt").write_text("def each(x):\n    for y in x:\n        yield y\n" * 20)
    own_tokenizer = trained_tokenizer(corpus(folder / "text.txt"), VOCABULARY, str(folder / "cache"))
    weights.save(build("llama", vocab_size=VOCABULARY), own_tokenizer)
    return own_tokenizer


def spoken(done):
    """The lines after those about device and operators, without the speeds at the end."""
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("prefill ")[0].partition("fused operators: ")[2].split("\n", 1)


def test_fused_and_unfused_text_are_the_same(run_python, checkpoint, tmp_path):
    batch = tmp_path / "prompts.txt"
    batch.write_text("\ufeff" + "\n".join(PROMPTS) + "\n\n", encoding="utf-8")
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    fused = run_python(SCRIPT, checkpoint, "--batch", batch, "--max_new_tokens", "7", "--batch_size", "2")
    unfused = run_python(
        SCRIPT, checkpoint, *prompts, "--max_new_tokens", "7", "--unfused", "--device", "cpu"
    )
    (operators, text), (none, same) = spoken(fused), spoken(unfused)
    assert operators == "attention 2 of 2, rms_norm 5 of 5, rotary 2 of 2, swiglu 2 of 2"
    assert none == "none (--unfused)"
    assert text == same and all(prompt in text for prompt in PROMPTS)
    last = re.fullmatch(rf"prefill {SPEED}, decode {SPEED}", fused.stdout.splitlines()[-1])
    assert int(last[1]) > 0 and int(last[2]) <= 3 * 6
    assert "device npu (virtual)" in fused.stdout and "device cpu (cpu)" in unfused.stdout


@pytest.mark.parametrize("axis", ["tensor", "pipeline"])
def test_two_ranks_print_what_one_prints(run_python, checkpoint, axis):
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    alone = run_python(SCRIPT, checkpoint, *prompts, "--max_new_tokens", "7")
    two = run_python(
        *(SCRIPT, checkpoint, *prompts, "--max_new_tokens", "7"),
        *("--nproc", "2", f"--{axis}_parallel_degree", "2"),
    )
    assert spoken(alone)[1] == spoken(two)[1]


@pytest.mark.parametrize("axis", ["tensor", "pipeline"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_others(start_python, checkpoint, tmp_path, rank, axis):
    batch = tmp_path / "prompts.txt"
    batch.write_text("for each in x\n" * 10_000)
    arguments = ("--batch", batch, "--batch_size", "1", "--max_new_tokens", "40")
    process = start_python(SCRIPT, checkpoint, *arguments, "--nproc", "2", f"--{axis}_parallel_degree", "2")
    for line in process.stdout:
        if line.startswith("for each in x"):
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[rank]), signal.SIGKILL)
    start = time.monotonic()
    _, stderr = process.communicate(timeout=ranks.TIMEOUT)
    seconds = time.monotonic() - start
    print(f"all processes ended {seconds:.1f} s after the kill")
    assert seconds < MOST_SECONDS
    assert process.returncode == 128 + signal.SIGKILL
    assert f"rank {rank} was killed by SIGKILL" in stderr
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_sampling_in_bfloat16(run_python, checkpoint):
    words = ("--decode", "sampling", "--top_p", "0.9", "--dtype", "bfloat16", "--max_new_tokens", "5")
    _, text = spoken(run_python(SCRIPT, checkpoint, "--prompt", "def ", *words))
    assert text.startswith("def ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--prompt", "x", "--top_k", "3"], "--top_k has no effect with --decode greedy"),
        (["--prompt", "x", "--device", "gpu"], "The device 'gpu' is unknown"),
        (["--batch", "none.txt"], "No such file or directory: 'none.txt'"),
        (["--prompt", "x", "--tokenizer", "none"], "is not a local directory"),
        (["--batch", "utf16.txt"], "invalid UTF-8 at byte 0"),
        ([], "--prompt --batch"),
        (["--prompt", "\udcff"], "a prompt is not valid Unicode"),
        (["--prompt", "x", "--seed", "-1"], "--seed is -1; accepted: 0 to 2**63 - 1"),
        (["--prompt", "x", "--decode", "sampling", "--temperature", "1e-40"], "accepted: 0.0001 or more"),
        (["--prompt", "x", "--decode", "beam", "--length_penalty", "nan"], "accepted: a finite number"),
        (["--prompt", "x", "--nproc", "3", *TENSOR, "3"], "has num_attention_heads 4"),
        (["--prompt", "x", *TENSOR, "2"], "set --nproc 2"),
        (["--prompt", "x", "--nproc", "2", *TENSOR, "2", "--device", "cpu"], "Set --device npu"),
        (["--prompt", "x", "--nproc", "2", *TENSOR, "2", "--tokenizer", "none"], "is not a local directory"),
    ],
)
def test_bad_input_is_one_sentence(run_python, checkpoint, tmp_path, words, sentence):
    (tmp_path / "utf16.txt").write_text("x", encoding="utf-16")
    done = run_python(SCRIPT, checkpoint, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_messages_are_written_by_the_chat_template(run_python, checkpoint, tmp_path):
    chatting = tmp_path / "chatting"
    shutil.copytree(checkpoint, chatting)
    (chatting / "chat_template.jinja").write_text("Q: {{ messages[0].content }} A:")
    arguments = ["--max_new_tokens", "5", "--device", "cpu"]
    result = run_python(SCRIPT, chatting, "--chat", "--prompt", "2 + 2?", *arguments)
    plain = run_python(SCRIPT, chatting, "--prompt", "Q: 2 + 2? A:", *arguments)
    assert "".join(spoken(result)[1:]).strip() == "2 + 2?\n" + plain_text(spoken(plain)[1], "Q: 2 + 2? A:")


def plain_text(output, prompt):
    return output.strip().removeprefix(prompt).strip()
