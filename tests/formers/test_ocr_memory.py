"""``examples/ocr/count_memory.py`` counts the memory of a step of PaddleFormers' trainer."""

import json
import re
from pathlib import Path

import pytest
import yaml
from places import ROOT

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples/ocr"
PROGRAM = Path(__file__).with_name("trainer_memory_program.py")
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
STEPS, ROWS = 3, 4
FROZEN = "freeze_vision freeze_aligner"
SETTINGS = {  # keys of the file, and arguments of the count
    "full": ({}, []),
    "frozen vision tower and projector": ({"freeze_config": FROZEN}, ["--freeze_config", FROZEN]),
    "LoRA": ({"fine_tuning": "lora", "lora": True, "lora_rank": 8}, ["--lora_rank", "8"]),
}
# What a trainer holds beside a step, such as the next batch, is small beside this model.
WIDER = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
TOLERANCE = 0.03  # that of a plan


@pytest.fixture(scope="module")
def task(run_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ocr")
    words = ("--train_words", "16", "--eval_words", "8")
    done = run_python("-m", "llm_npu.formers", EXAMPLE / "make_task.py", folder, *words)
    assert done.returncode == 0, done.stderr
    file = folder / "model/config.json"
    config = json.loads(file.read_text()) | WIDER
    config["vision_config"] |= WIDER
    file.write_text(json.dumps(config))
    return folder


def peaks_of_training(run_python, task, folder, **changes) -> list[int]:
    """The peak of each step in bytes."""
    content = yaml.safe_load((task / "train.yaml").read_text()) | RECOMPUTE | changes
    content |= {"max_steps": STEPS, "save_steps": 2 * STEPS, "do_eval": False, "continue_training": False}
    content |= {"per_device_train_batch_size": ROWS, "output_dir": str(folder / "out")}
    (folder / "train.yaml").write_text(yaml.safe_dump(content))
    done = run_python("-m", "llm_npu.formers", PROGRAM, "train", folder / "train.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return [int(peak) for peak in re.findall(r"^peak: (\d+)$", done.stdout, re.MULTILINE)]


def counted(run_python, task, *arguments, **environment) -> float:
    """The peak of a step in bytes, for images of one line of four letters."""
    sizes = ("--images", ROWS, "--rows", 2, "--columns", 8, "--text", 11, "--model", task / "model")
    program = EXAMPLE / "count_memory.py"
    done = run_python("-m", "llm_npu.formers", program, *sizes, *arguments, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return float(re.search(r"peak ([\d.,]+) MiB", done.stdout)[1].replace(",", "")) * 2**20


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_dry_run_counts_the_memory_of_training(run_python, task, tmp_path, setting):
    changes, arguments = SETTINGS[setting]
    peaks = peaks_of_training(run_python, task, tmp_path, **changes)
    count = counted(run_python, task, *arguments, VIRTUAL_NPU_DRY="1")
    assert len(peaks) == STEPS
    assert count == pytest.approx(max(peaks), rel=TOLERANCE), (count, peaks)
