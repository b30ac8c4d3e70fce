"""A test that crashes the process reports its location, so that a run in one process can be debugged."""

import os
import signal

import pytest
from places import SHARED, TESTS

pytestmark = pytest.mark.slow

CRASH = """
import ctypes
import paddle

def test_that_crashes():
    print(paddle.ones([2]).place)
    ctypes.string_at(0)
"""


def test_the_line_of_a_crash_is_shown(run_python, tmp_path):
    """Paddle installs signal handlers when it is imported, and their output is captured and lost."""
    file = tmp_path / "test_crash.py"
    file.write_text(CRASH)
    command = ("-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", tmp_path, file)
    done = run_python(*command, PYTHONPATH=os.pathsep.join((str(TESTS), str(SHARED))))
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert f'File "{file}", line 7 in test_that_crashes' in done.stderr, done.stderr
