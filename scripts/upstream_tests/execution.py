"""Runs upstream test files, each in a separate process, and reads their records."""

import contextlib
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import virtual_npu
from paddle_fused.command_line import UserError

UNITTESTS = Path("backends/npu/tests/unittests")
OUTCOMES = ("passed", "failed", "error", "skipped")
ONE_FILE = Path(__file__).resolve().parent / "one_file.py"


@dataclass
class FileResult:
    """The results of one test file. `ended`: how its process was killed or crashed; "" for a normal end."""

    name: str
    tests: dict = field(default_factory=dict)  # test id -> (outcome, message)
    ended: str = ""
    running: str = ""  # the test that was running then
    seconds: float = 0.0

    def count(self, outcome):
        return sum(1 for kind, _ in self.tests.values() if kind == outcome)

    @property
    def ending(self):
        return f"{self.ended} in {self.running}" if self.running else self.ended

    @property
    def failures(self):
        """{test: message}, including the test in which the process died."""
        failures = {
            test: message for test, (kind, message) in self.tests.items() if kind in ("failed", "error")
        }
        if self.ended:
            failures[self.running or "(outside of any test)"] = self.ending
        return failures


def check_checkout(checkout):
    """Raises UserError for a folder that is not a PaddleCustomDevice checkout with its Paddle submodule."""
    if not (checkout / UNITTESTS).is_dir():
        raise UserError(f"{checkout} has no {UNITTESTS}: specify the root of a PaddleCustomDevice checkout")
    for needed in ("python/tests/op_test.py", "python/tools/static_mode_white_list.py"):
        if not (checkout / needed).is_file():
            raise UserError(
                f"{checkout}/{needed} does not exist: the tests need the Paddle submodule. "
                "Run `git submodule update --init Paddle` in the checkout."
            )


def modules_of(checkout, patterns):
    """The names of the test modules that match one of the file-name patterns, sorted."""
    modules = {path.stem for path in (checkout / UNITTESTS).glob("test_*.py")}
    return sorted(set().union(*(fnmatch.filter(modules, pattern) for pattern in patterns)))


def cmake_environment(checkout):
    """The variables that upstream's CMakeLists.txt sets for individual tests: {module: {name: value}}."""
    lists = checkout / UNITTESTS / "CMakeLists.txt"
    pattern = r"set_tests_properties\(\s*(\w+)\s+PROPERTIES\s+ENVIRONMENT\s+(\w+)=([^\s)]+)\s*\)"
    variables = {}
    for module, name, value in re.findall(pattern, lists.read_text() if lists.is_file() else ""):
        variables.setdefault(module, {})[name] = value
    return variables


class Execution:
    """Runs files of one checkout. Several threads may call `run`, and `stop` kills their processes."""

    def __init__(self, checkout, limit, additions):
        """`limit`: seconds for each file; `additions`: [{"files": patterns, "set": variables}, ...]."""
        self.checkout = checkout
        self.limit = limit
        self.additions = additions
        self.from_cmake = cmake_environment(checkout)
        self.sessions = set()

    def environment(self, module, folder):
        """The virtual NPU's environment, upstream's search path, and one thread. Nothing is written to the
        checkout."""
        environment = {**os.environ, **virtual_npu.environment()}
        python = self.checkout / "python"
        paths = [folder, python, python / "tests", python / "tools", environment["PYTHONPATH"]]
        environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        # Multi-card tests start `python`: it must be this interpreter.
        bin_folder = str(Path(sys.executable).parent)
        environment["PATH"] = os.pathsep.join([bin_folder, environment.get("PATH", os.defpath)])
        environment["OMP_NUM_THREADS"] = "1"
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment["FLAGS_dynamic_static_unified_comm"] = "true"  # Paddle's test_runner.py sets it
        for addition in self.additions:
            if any(fnmatch.fnmatch(module, pattern) for pattern in addition["files"]):
                environment.update(addition["set"])
        environment.update(self.from_cmake.get(module, {}))
        return environment

    def run(self, module):
        """Runs one test file to its end or its time limit."""
        result = FileResult(module)
        with tempfile.TemporaryDirectory(prefix="upstream_tests_") as scratch:
            folder = Path(scratch) / "unittests"
            shutil.copytree(self.checkout / UNITTESTS, folder)
            record, output = Path(scratch) / "record.jsonl", Path(scratch) / "output.txt"
            began = time.monotonic()
            status = self.wait_for(module, folder, record, output)
            result.seconds = time.monotonic() - began
            result.running = read_record(record, result.tests)
            result.ended = how_it_ended(status, self.limit, bool(result.running), output)
        return result

    def wait_for(self, module, folder, record, output):
        """The exit status; None if the limit was reached. No child process is left running."""
        with output.open("w") as sink:
            process = subprocess.Popen(
                [sys.executable, str(ONE_FILE), module, str(record)],
                cwd=folder,
                env=self.environment(module, folder),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # multi-card tests start processes, which are ended together
            )
            self.sessions.add(process.pid)
            try:
                return process.wait(self.limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                end_session(process.pid)
                process.wait()
                self.sessions.discard(process.pid)

    def stop(self):
        for session in list(self.sessions):
            end_session(session)


def end_session(leader):
    with contextlib.suppress(ProcessLookupError):  # nothing was left running
        os.killpg(leader, signal.SIGKILL)


def read_record(record, tests):
    """Fills `tests` from the record; returns the test that was running when the process ended, or ""."""
    running = ""
    for line in record.read_text().splitlines() if record.is_file() else ():
        try:
            entry = json.loads(line)
        except ValueError:  # a line that was being written when the process was killed
            break
        if "started" in entry:
            running = entry["started"]
            continue
        running = ""
        if "test" not in entry:  # another test has ended
            continue
        if tests.get(entry["test"], ("passed",))[0] in ("passed", "skipped"):  # keep a failure
            tests[entry["test"]] = (entry["outcome"], entry["message"])
    return running


def how_it_ended(status, limit, in_a_test, output):
    """How a process was killed or crashed; "" if it ended normally."""
    if status is None:
        return f"time limit of {limit:g} s"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if status > 0 and in_a_test:
        last = output.read_text(errors="replace").strip().splitlines()[-1:] or [""]
        return f"exit status {status}: {last[0][:200]}"
    return ""
