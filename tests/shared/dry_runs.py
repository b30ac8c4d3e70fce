"""Dry runs, with which the planner's predictions are compared: of the training script, and recorded calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import run_inputs
from places import ROOT

from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape
from llm_npu.plan.step_model.operations import Operation
from llm_npu.training.dry_run.journal import Call

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


def operation(call: Call) -> Operation:
    """The recorded ``call`` as an operation of the cost model."""
    shapes = tuple(shape for _, shape in call.inputs)
    sizes = {"flops": float(call.flops), "bytes": float(call.bytes)}
    return Operation(call.name, call.kind, dtype=call.dtype, shapes=shapes, **sizes)


def flops(operations: Iterable[Operation], kind: str) -> float:
    return sum(op.flops * op.times for op in operations if op.kind == kind)
