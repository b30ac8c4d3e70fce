"""Dry runs of the training script, with which the planner's predictions are compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import run_inputs
from places import ROOT

from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape

SCRIPT = ROOT / "scripts" / "run_llama_npu.py"


def followed(shape: ModelShape, layout: Layout, inputs: dict[str, Path], folder: Path) -> int:
    """The peak memory in bytes of the fullest stage's device, as the run reports it: in whole MiB."""
    flags = {
        "input_dir": inputs["input_dir"],
        "data_cache": inputs["data_cache"],
        "output_dir": folder / "out",
    }
    flags |= {"nproc": layout.cards, "max_steps": 2, "do_eval": "false"}
    argv = [sys.executable, str(SCRIPT), *layout.arguments(shape), *run_inputs.words(flags)]
    environment = {**os.environ, "VIRTUAL_NPU_DRY": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    peaks = re.findall(r"^memory +peak ([\d,]+) MiB$", done.stdout, re.MULTILINE)  # of every stage
    return max(int(mebibytes.replace(",", "")) for mebibytes in peaks) << 20
