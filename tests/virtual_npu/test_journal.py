"""A journal that cannot be written: the disk is full, or the folder is gone."""

import json

import pytest

pytestmark = pytest.mark.slow

# Operators until one refuses; then what flushing and marking say. Tensors that are freed write lines, too.
UNTIL_REFUSED = """
import json, os, shutil, sys
import virtual_npu
virtual_npu.activate()
import paddle
if len(sys.argv) > 1:
    shutil.rmtree(sys.argv[1])
paddle.set_device("npu:0")
errors = []
for call in (lambda: [paddle.ones([4]) + 1 for _ in range(10000)], virtual_npu.flush_journal,
             lambda: virtual_npu.mark_journal("a mark"), lambda: paddle.ones([4])):
    try:
        call()
    except OSError as error:
        errors.append([type(error).__name__, str(error)])
print(json.dumps(errors))
"""


def refusals(done):
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("virtual npu: The journal ") == 1
    return json.loads(done.stdout.splitlines()[-1])


def test_a_full_disk_is_named_by_the_next_operator(run_python):
    errors = refusals(run_python("-c", UNTIL_REFUSED, VIRTUAL_NPU_JOURNAL="/dev/full"))
    assert [kind for kind, _ in errors] == ["OSError"] * 4
    assert all("/dev/full" in text and "No space left on device" in text for _, text in errors)


def test_a_folder_that_is_gone_is_named(run_python, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    errors = refusals(run_python("-c", UNTIL_REFUSED, folder, VIRTUAL_NPU_JOURNAL=str(folder / "journal")))
    assert len(errors) == 4
    assert all("No such file or directory" in text for _, text in errors)


def test_lines_that_are_lost_at_exit_are_reported(run_python):
    program = (
        "import virtual_npu; virtual_npu.activate(); import paddle; "
        "paddle.set_device('npu:0'); x = paddle.ones([4])"
    )
    done = run_python("-c", program, VIRTUAL_NPU_JOURNAL="/dev/full")
    assert done.returncode == 0
    assert "No space left on device" in done.stderr
