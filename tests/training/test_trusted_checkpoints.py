"""Resuming runs nothing that stands in a checkpoint, of an earlier release neither, unless it is told to."""

import json
import os
import shutil

import paddle
import pytest
from checkpoint_files import store
from run_inputs import inputs as small_run
from run_inputs import losses, words
from test_run_llama import SCRIPT

from llm_npu.core import console
from llm_npu.launch import folder_lock
from llm_npu.training import checkpoint
from llm_npu.training.checkpoint import states
from llm_npu.training.checkpoint.random_state import from_plain

SETTINGS = {
    "max_steps": 4,
    "save_steps": 2,
    "max_seq_length": 16,
    "per_device_train_batch_size": 2,
    "do_eval": False,
    "lr_scheduler_type": "constant",
    "attention_probs_dropout_prob": 0.1,
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    found = small_run(tmp_path_factory.mktemp("inputs"), attention_dropout=0.1)
    return words(found | SETTINGS)


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the script's main in this process: (exit code, stderr)."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import run_llama_npu

    def run(*argv):
        with paddle.utils.unique_name.guard():
            status = console.run(run_llama_npu.main, [str(word) for word in argv])
        return status, capsys.readouterr().err

    return run


class Makes:
    """Pickles as a call that makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def as_earlier(folder, **changed):
    """The checkpoint as an earlier release wrote it: its states in files of paddle.save."""
    contents = {file.name: file.read_bytes() for file in folder.iterdir() if file.name != checkpoint.MARK}
    for name in ("scheduler", "scaler", "rng_state_0"):
        if f"{name}.json" not in contents:
            continue
        state = json.loads(contents.pop(f"{name}.json"))
        if name == "rng_state_0":
            state = from_plain(state, "here")
        earlier = folder.parent / states.EARLIER.get(name, f"{name}.pth")
        paddle.save(changed.get(name, state), str(earlier))
        contents[earlier.name] = earlier.read_bytes()
        earlier.unlink()
    step = checkpoint.step_of(folder)
    shutil.rmtree(folder)
    return store(folder.parent, step, contents)


def files_of(folder):
    """{file: content} below the folder, without the lock, which each run writes its own name into."""
    return {
        file: file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != folder_lock.NAME
    }


@pytest.mark.slow
def test_checkpoints_of_earlier_releases_continue_bit_for_bit_and_run_nothing(run, arguments, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert run(*arguments, "--output_dir", whole)[0] == 0
    kept = checkpoint.path_of(whole, 4)
    assert not [file.name for file in kept.iterdir() if file.suffix not in (".json", ".safetensors")]
    assert run(*arguments, "--output_dir", halves, "--max_steps", 2)[0] == 0
    resumed = [*arguments, "--output_dir", halves, "--resume_from_checkpoint"]

    harm = tmp_path / "harm"
    half = checkpoint.path_of(halves, 2)
    good = shutil.copytree(half, tmp_path / "good")
    for name in ("scheduler", "rng_state_0"):
        as_earlier(half, **{name: {"last_epoch": Makes(harm)}})
        before = files_of(halves)
        status, said = run(*resumed)
        assert status == 2 and "asks for posix.mkdir" in said and "--trust_checkpoint" in said
        assert said.count("\n") == 1 and not harm.exists()
        assert files_of(halves) == before
        shutil.rmtree(half)
        shutil.copytree(good, half)

    as_earlier(half)
    assert run(*resumed)[0] == 0
    assert losses(halves) == losses(whole)
    for file in ("model.safetensors", "optimizer.safetensors", "scheduler.json", "rng_state_0.json"):
        written = checkpoint.path_of(halves, 4) / file
        assert written.read_bytes() == (kept / file).read_bytes(), file


@pytest.mark.slow
def test_trust_lets_paddle_unpickle(run, arguments, tmp_path):
    out, made = tmp_path / "out", tmp_path / "made"
    assert run(*arguments, "--output_dir", out, "--max_steps", 2)[0] == 0
    half = checkpoint.path_of(out, 2)
    schedule = json.loads((half / "scheduler.json").read_text())
    as_earlier(half, scheduler=schedule | {"more": Makes(made)})
    again = [*arguments, "--output_dir", out, "--resume_from_checkpoint"]
    assert run(*again)[0] == 2 and not made.exists()
    assert run(*again, "--trust_checkpoint")[0] == 0 and made.is_dir()
