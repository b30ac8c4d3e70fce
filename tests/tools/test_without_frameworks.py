"""The tools' help, refusals, answers and reports import no framework, which alone would take seconds."""

import json

import numpy as np
import pytest
from handmade_profiles import msprof
from handmade_profiles.msprof import Task
from safetensors.numpy import save_file

PROGRAM = """
import contextlib, io, json, runpy, sys
heavy = {"paddle", "paddlenlp", "torch", "pandas", "matplotlib"}
ends = []
for tool, *arguments in json.loads(sys.argv[1]):
    sys.argv = ["", *arguments]
    printed = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_module(f"llm_npu.{tool}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
    ends.append((code, printed.getvalue(), sorted(heavy & set(sys.modules))))
print(json.dumps(ends))
"""
RUN = ["--model_name_or_path", "llama2-70b", "--cards", "32", "--global_batch_size", "512"]
LAYOUT = ["--tensor_parallel_degree", "8", "--pipeline_parallel_degree", "4", "--sequence_parallel"]
# The arguments, the exit code, and what is printed; last the commands that may read tables and draw.
COMMANDS = [
    (["plan", "--help"], 0, "--search"),
    (["plan", *RUN, "--tensor_parallel_degree", "3"], 2, "does not divide --cards 32"),
    (["plan", *RUN, *LAYOUT], 0, "MFU"),
    (["doctor", "--help"], 0, "--explain"),
    (["doctor", "--explain", "nowhere"], 2, "cannot be read"),
    (["doctor", "--explain", "run.log"], 1, "kernel-exception"),
    (["numerics", "compare", "--help"], 0, "--noise_floor"),
    (["numerics", "compare", "one", "nowhere"], 2, "contains no dump"),
    (["numerics", "compare", "one", "other"], 1, "first difference beyond rounding: the output of a"),
]
DRAWING = [
    (["profiling", "report", "--help"], 0, "--compare"),
    (["profiling", "report", "nowhere"], 2, "is not a folder"),
    (["profiling", "report", "profile"], 0, "Top operators"),
    (["profiling", "report", "profile", "--html", "report.html"], 0, "The page is report.html"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log, a profile, and two dumps."""
    inputs = tmp_path_factory.mktemp("inputs")
    (inputs / "run.log").write_text("error code is 507015\n")
    msprof.write(inputs / "profile/PROF_1", [Task("MatMulV2", "AI_CORE", 0, 10)])
    for name, value in (("one", 1.0), ("other", 2.0)):
        (inputs / name).mkdir()
        save_file({"output/a": np.full(4, value, np.float32)}, inputs / name / "model.safetensors")
        (inputs / name / "order.json").write_text(json.dumps(["output/a"]))
    return inputs


def test_no_framework_is_imported(run_python, folder):
    """All commands in one process: what one of them imports stays in ``sys.modules`` for the others."""
    commands = COMMANDS + DRAWING
    done = run_python("-c", PROGRAM, json.dumps([command for command, _, _ in commands]), cwd=folder)
    assert done.returncode == 0, done.stderr
    for (command, code, words), (ended, printed, imported) in zip(
        commands, json.loads(done.stdout), strict=True
    ):
        drawing = {"pandas", "matplotlib"} if (command, code, words) in DRAWING else set()
        assert ended == code and set(imported) <= drawing, (command, imported, printed)
        assert words in printed, command
