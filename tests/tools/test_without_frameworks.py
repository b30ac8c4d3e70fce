"""The tools' help, refusals, answers and reports import no framework, which alone would take seconds."""

import json

import numpy as np
import pytest
from handmade_profiles import msprof
from handmade_profiles.msprof import Task
from safetensors.numpy import save_file

PROGRAM = """
import runpy, sys
code, module = 0, sys.argv.pop(1)
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
heavy = {"paddle", "paddlenlp", "torch"}
if "report" not in sys.argv and "--html" not in sys.argv:
    heavy |= {"pandas", "matplotlib"}
loaded = heavy & set(sys.modules)
sys.exit(f"imported: {loaded}" if loaded else code)
"""
RUN = ["--model_name_or_path", "llama2-70b", "--cards", "32", "--global_batch_size", "512"]
LAYOUT = ["--tensor_parallel_degree", "8", "--pipeline_parallel_degree", "4", "--sequence_parallel"]
# The arguments, the exit code, and what is printed.
COMMANDS = [
    (["plan", "--help"], 0, "--search"),
    (["plan", *RUN, "--tensor_parallel_degree", "3"], 2, "does not divide --cards 32"),
    (["plan", *RUN, *LAYOUT], 0, "MFU"),
    (["plan", *RUN, *LAYOUT, "--html", "plan.html"], 0, "The page is plan.html"),
    (["doctor", "--help"], 0, "--explain"),
    (["doctor", "--explain", "nowhere"], 2, "cannot be read"),
    (["doctor", "--explain", "run.log"], 1, "kernel-exception"),
    (["profiling", "report", "--help"], 0, "--compare"),
    (["profiling", "report", "nowhere"], 2, "is not a folder"),
    (["profiling", "report", "profile"], 0, "Top operators"),
    (["profiling", "report", "profile", "--html", "report.html"], 0, "The page is report.html"),
    (["numerics", "compare", "--help"], 0, "--yardstick"),
    (["numerics", "compare", "one", "nowhere"], 2, "contains no dump"),
    (["numerics", "compare", "one", "other"], 1, "they part first at the output of a"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log, a profile, and two dumps."""
    found = tmp_path_factory.mktemp("inputs")
    (found / "run.log").write_text("error code is 507015\n")
    msprof.write(found / "profile/PROF_1", [Task("MatMulV2", "AI_CORE", 0, 10)])
    for name, value in (("one", 1.0), ("other", 2.0)):
        (found / name).mkdir()
        save_file({"output/a": np.full(4, value, np.float32)}, found / name / "model.safetensors")
        (found / name / "order.json").write_text(json.dumps(["output/a"]))
    return found


@pytest.mark.default_run(every=True)
@pytest.mark.parametrize(("command", "code", "words"), COMMANDS, ids=lambda value: "")
def test_no_framework_is_imported(run_python, folder, command, code, words):
    tool, *arguments = command
    done = run_python("-c", PROGRAM, f"llm_npu.{tool}", *arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
