"""--profile: what it accepts, and a training that it records."""

import json
import re
from pathlib import Path

import pytest
from places import ROOT
from profiled.files import table
from run_inputs import inputs, words

from llm_npu import config
from llm_npu.config import ProfileWindow, profile_window

pytestmark = pytest.mark.sampled

SCRIPT = ROOT / "scripts/run_llama_npu.py"


def test_windows():
    assert profile_window("steps=10:13") == ProfileWindow(10, 12)
    assert profile_window("steps=1:2,memory,warmup=0") == ProfileWindow(1, 1, warmup=0, memory=True)
    assert profile_window("shapes,steps=2:9,call_sites") == ProfileWindow(2, 8, shapes=True, call_sites=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is invalid"),
        ("10:13", "'10:13'"),
        ("steps=10", "'steps=10'"),
        ("steps=3:3", "no step"),
        ("steps=0:3", "no step"),
        ("shapes", "steps"),
        ("steps=1:3,shape", "'shape'.*accepted: steps=10:13"),
        ("steps=1:3,steps=4:5", "sets steps twice"),
        ("steps=1:3,warmup=-1", "'warmup=-1'"),
    ],
)
def test_bad_windows(text, message):
    with pytest.raises(ValueError, match=message):
        profile_window(text)


def test_windows_that_cannot_be():
    with pytest.raises(ValueError, match="--max_steps 5 ends before that"):
        config.parse(["--profile", "steps=4:8", "--max_steps", "5"])
    with pytest.raises(ValueError, match="needs --device npu"):
        config.parse(["--profile", "steps=4:8", "--device", "cpu"])


def test_folder_before_paddle_is_imported():
    assert config.read([]).early.profile_dir is None
    assert config.read(["--profile", "steps=1:2", "--output_dir", "out"]).early.profile_dir == Path(
        "out/profile"
    )


@pytest.fixture(scope="module")
def training(run_python, tmp_path_factory):
    """A training of five steps that records the third and the fourth, and what it printed."""
    folder = tmp_path_factory.mktemp("training")
    arguments = inputs(folder) | {
        "output_dir": folder / "out",
        "max_steps": 5,
        "max_seq_length": 32,
        "per_device_train_batch_size": 2,
        "save_strategy": "no",
        "do_eval": "false",
        "profile": "steps=3:5,shapes",
    }
    done = run_python(SCRIPT, *words(arguments))
    assert done.returncode == 0, done.stderr
    return folder, words(arguments), done.stdout


@pytest.mark.slow
def test_training_is_recorded(training):
    folder, _, printed = training
    assert f"profile: steps 3 to 4 are in {folder / 'out/profile'}" in printed
    rows = table(folder / "out/profile/rank_0", "op_summary")
    by_type = {row["OP Type"]: row["Task Type"] for row in rows}
    assert by_type["flash_attention_npu"] == "AI_CORE" and by_type["rms_norm_npu"] == "AI_VECTOR_CORE"
    attention = [row for row in rows if row["OP Type"] == "flash_attention_npu"]
    assert len(attention) == 2 * 2  # layers and steps
    assert {row["Input Data Types"] for row in attention} == {"DT_BF16;DT_BF16;DT_BF16"}
    assert all(re.fullmatch(r'"2,32,2,32;2,32,2,32;2,32,2,32"', row["Input Shapes"]) for row in attention)
    events = json.loads((folder / "out/profile/rank_0/trace.json").read_text())["traceEvents"]
    assert sum(event["name"].startswith("ProfileStep") for event in events) == 2


@pytest.mark.slow
def test_resuming_behind_the_window_records_nothing(training, run_python):
    folder, arguments, _ = training
    before = sorted((folder / "out/profile/rank_0").iterdir())
    longer = [*arguments, "--max_steps", "6", "--resume_from_checkpoint"]
    done = run_python(SCRIPT, *longer)
    assert done.returncode == 0, done.stderr
    assert "profile: steps 3 to 4 are before step 5" in done.stdout
    assert sorted((folder / "out/profile/rank_0").iterdir()) == before
