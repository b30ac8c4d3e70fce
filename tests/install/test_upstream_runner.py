"""scripts/run_upstream_tests.py on a made-up checkout: every way a test file can end shows in the table."""

import importlib
import json
import re
import textwrap
from pathlib import Path

import pytest
from places import ROOT

from paddle_fused.command_line import UserError

pytestmark = pytest.mark.sampled

SCRIPT = ROOT / "scripts" / "run_upstream_tests.py"

FILES = {
    "test_passing.py": """
        import os
        import unittest
        import npu_utils  # a module that stands beside the tests
        import paddle
        from tests.op_test import OpTest

        class TestPassing(OpTest):
            def test_device(self):
                self.assertIn("npu", paddle.device.get_all_custom_device_type())

            def test_variable_of_the_cmake_file(self):
                self.assertEqual(os.environ["FLAGS_made_up"], "7")

            @unittest.skip("on purpose")
            def test_skipped(self):
                pass

            def test_writes_into_its_folder(self):
                open("left_over.txt", "w").close()
        """,
    "test_failing.py": """
        import unittest

        class TestFailing(unittest.TestCase):
            def test_fails(self):
                self.assertEqual(1, 2)

            def test_errs(self):
                raise KeyError("made up")

            def test_subtests(self):
                for number in range(3):
                    with self.subTest(number=number):
                        self.assertNotEqual(number, 1)
        """,
    "test_hanging.py": """
        import subprocess
        import sys
        import threading
        import unittest

        class TestHanging(unittest.TestCase):
            def test_a_passes(self):
                pass

            def test_b_hangs(self):
                program = "import threading; threading.Event().wait()"
                subprocess.Popen([sys.executable, "-c", program, {marker!r}])
                threading.Event().wait()
        """,
    "test_crashing.py": """
        import os
        import signal
        import unittest

        class TestCrashing(unittest.TestCase):
            def test_a_passes(self):
                pass

            def test_b_crashes(self):
                os.kill(os.getpid(), signal.SIGSEGV)

            def test_c_never_runs(self):
                pass
        """,
    "test_unimportable.py": "import a_module_that_does_not_exist",
    "npu_utils.py": "",
    "CMakeLists.txt": "set_tests_properties(test_passing PROPERTIES ENVIRONMENT\n    FLAGS_made_up=7)",
}


@pytest.fixture(scope="module")
def runner():
    """The script as a module; its folder is on the path, as it is when Python runs the script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module(SCRIPT.stem)


@pytest.fixture
def checkout(tmp_path):
    """A folder laid out like PaddleCustomDevice, with a harness of one class."""
    root = tmp_path / "checkout"
    unittests = root / "backends" / "npu" / "tests" / "unittests"
    harness, tools = root / "python" / "tests", root / "python" / "tools"
    for folder in (unittests, harness, tools):
        folder.mkdir(parents=True)
    for name, content in FILES.items():
        (unittests / name).write_text(textwrap.dedent(content).replace("{marker!r}", repr(str(tmp_path))))
    (harness / "op_test.py").write_text("import unittest\n\nclass OpTest(unittest.TestCase):\n    pass\n")
    (tools / "static_mode_white_list.py").write_text("STATIC_MODE_TESTING_LIST = []\n")
    return root


def rows_of(report):
    """{file: [passed, failed, errors, skipped, why]} from the table in Markdown."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in report.splitlines()
        if line.startswith("| test_")
    ]
    return {name: [*map(int, counts), why] for name, *counts, why in cells}


@pytest.mark.slow
def test_every_ending_is_reported(runner, checkout, tmp_path):
    before = sorted(checkout.rglob("*"))
    report = tmp_path / "report.md"
    status = runner.main([str(checkout), "--limit", "40", "--report", str(report)])
    assert status == 1  # no failure of this checkout is a known one
    text = report.read_text()
    assert "5 files, 1 without a failure" in text
    rows = rows_of(text)
    assert rows["test_passing"] == [3, 0, 0, 1, "1 skipped by upstream: on purpose"]
    assert rows["test_failing"][:4] == [0, 2, 1, 0]
    assert "KeyError: 'made up'" in rows["test_failing"][4]
    assert rows["test_hanging"][:4] == [1, 0, 0, 0]
    assert "time limit of 40 s in test_hanging.TestHanging.test_b_hangs" in rows["test_hanging"][4]
    assert rows["test_crashing"][:4] == [1, 0, 0, 0]
    assert "killed by SIGSEGV in test_crashing.TestCrashing.test_b_crashes" in rows["test_crashing"][4]
    assert rows["test_unimportable"][:4] == [0, 0, 1, 0]
    assert "a_module_that_does_not_exist" in rows["test_unimportable"][4]
    assert sorted(checkout.rglob("*")) == before  # nothing was written into the checkout
    assert not any(str(tmp_path) in command and "Event" in command for command in running_commands())


def running_commands():
    """The command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue


def test_reasons_are_matched_by_file_test_and_message(runner):
    from upstream_tests.execution import FileResult

    result = FileResult("test_some_op")
    result.tests = {
        "a.b.test_one": ("error", "ValueError: needs a card"),
        "a.b.test_two": ("failed", "AssertionError"),
        "a.b.test_three": ("passed", ""),
    }
    reasons = [
        {"file": "test_other*", "why": "another file"},
        {"message": "needs a card", "why": "needs a card"},
        {"file": "test_some*", "test": "test_two", "message": "KeyError", "why": "another message"},
    ]
    explained, unexplained = runner.explain(result, reasons)
    assert explained == {"needs a card": 1}
    assert unexplained == [("a.b.test_two", "AssertionError")]


def test_the_known_reasons_can_be_matched(runner):
    known = json.loads(runner.KNOWN.read_text())
    for reason in known["reasons"]:
        assert reason["why"] and {"file", "test", "message"} & set(reason), reason
        assert set(reason) <= {"file", "test", "message", "why"}, reason
        for pattern in (reason.get("test", ""), reason.get("message", "")):
            re.compile(pattern)
    for addition in known["environment"]:
        assert addition["files"] and addition["set"] and addition["why"], addition
    assert known["groups"][-1]["files"] == ["*"]  # no file is left out of the report


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("backends/npu/tests/unittests", "PaddleCustomDevice checkout"),
        ("python/tests/op_test.py", "Paddle submodule"),
    ],
)
def test_a_checkout_that_cannot_be_used_is_refused(run_python, checkout, missing, sentence):
    (checkout / missing).rename(checkout / "elsewhere")
    done = run_python(SCRIPT, checkout)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pattern_without_files_is_refused(runner, checkout):
    with pytest.raises(UserError, match=re.escape("matches 'test_nothing*'")):
        runner.main([str(checkout), "--only", "test_nothing*"])
