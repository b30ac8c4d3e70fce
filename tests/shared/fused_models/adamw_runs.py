"""Runs with FusedAdamW and with upstream AdamW, which call one kernel on npu: the same bits are expected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import paddle
import ranks
import run_inputs
from places import TESTS
from run_inputs import losses

from llm_npu.models import weights
from llm_npu.models.families import config_class, new_model
from llm_npu.training import checkpoint

PROGRAM = TESTS / "parallel/resumed_runs.py"
STEPS, SAVED = 4, 2
FUSED, UPSTREAM = "--use_fused_adamw true", "--use_fused_adamw false"
RUNS = {  # {name: (the run whose checkpoint it begins with, flags)}
    "fused": (None, FUSED),
    "upstream": (None, UPSTREAM),
    "fused, then upstream": ("fused", UPSTREAM),
    "upstream, then fused": ("upstream", FUSED),
}
OFFLOADED = {  # the same with states, and saved inputs of layers, in host memory
    "without": (None, "--recompute"),
    "all": (None, "--recompute --offload_activations --offload_optimizer"),
    "some": ("without", "--recompute --offload_activations 1:4:2"),
}
SFT = "--stage sft --packing first_fit --input_dir {conversations}"
# Early steps are infinite in float16 and skipped: a checkpoint is then written one step later.
FLOAT16 = "--fp16 --scale_loss 1048576"
FLOAT32 = "--bf16 false"
SETTINGS = {
    "split": "80,20,0",
    "max_seq_length": 32,
    "max_steps": STEPS,
    "learning_rate": "5e-3",
    "weight_decay": 0.3,
    "max_grad_norm": 0.5,
    "save_steps": SAVED,
    "do_eval": "false",
    "evaluation_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": "true",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
}


def arguments(folder: Path, **fields: object) -> list[str]:
    """The arguments of runs of a very small model with weights, on a little text, in ``folder``."""
    inputs = run_inputs.inputs(folder, **fields)
    settings = {**run_inputs.LLAMA, **fields}
    config = config_class(settings["model_type"])(**settings)
    paddle.seed(1)  # in float16, the weights decide how many of the first steps are skipped
    weights.save(new_model(config), inputs["model_name_or_path"])
    return run_inputs.words({**inputs, **SETTINGS})


def train(processes: int, flags: str, folder: Path, arguments: Sequence[str], runs=RUNS) -> Path:
    """Where the ``runs`` are, each in the same ``processes``."""
    steps = []
    for name, (start, switch) in runs.items():
        begin = start and str(folder / start)
        steps.append([str(folder / name), begin, f"{switch} {flags}"])
    ranks.run(PROGRAM, processes, folder, json.dumps(steps), *arguments)
    return folder


def assert_equal(folder: Path, runs=RUNS) -> None:
    """Losses, weights and states of the optimizer are the same in all ``runs``, bit for bit."""
    first = next(iter(runs))
    expected, _ = losses(folder / first)
    assert list(expected) == list(range(1, STEPS + 1))
    last = checkpoint.path_of(folder / first, STEPS)
    files = sorted(path.name for path in last.glob("*.safetensors"))
    assert any(name.startswith("optimizer") for name in files), files
    for name, (start, _) in runs.items():
        resumed, _ = losses(folder / name)
        assert resumed == {step: expected[step] for step in resumed}
        assert STEPS in resumed and (start or len(resumed) == STEPS), resumed
        for file in files:
            other = checkpoint.path_of(folder / name, STEPS) / file
            assert (last / file).read_bytes() == other.read_bytes(), (name, file)


def assert_named(folder: Path) -> None:
    """The backend report and the summary name the optimizer, and the kernels are those of the report."""
    printed = (folder / "0.log").read_text()
    for name, (_, switch) in RUNS.items():
        lines = printed.partition(f"==== {folder / name}\n")[2].partition("\n==== ")[0].splitlines()
        ran = [line for line in lines if line.startswith("ran      fused_adamw ")]
        rows = [line.split() for line in lines if " fused_adamw " in line and "optimizer " in line]
        assert rows, lines
        # With float16 it is the first step with an update.
        assert any("first step as predicted" in line for line in lines), lines
        if switch == FUSED:
            assert ran and all(": ascend adamw of Paddle" in line for line in ran), lines
            assert all(row[row.index("fused_adamw") + 1] == "ascend" for row in rows)
        else:
            assert not ran
            assert all("switched off by use_fused_adamw" in " ".join(row) for row in rows)
