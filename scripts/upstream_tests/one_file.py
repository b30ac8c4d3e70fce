"""Runs one upstream test module and records each test as it ends: one_file.py MODULE RECORD.

Upstream starts a module through Paddle's tools/test_runner.py, which prints only failures. This program does
the same (a fresh program, scope and name generator around loading and running; static mode for the modules
that Paddle lists as needing it) and appends one JSON line per event to RECORD, so that after a crash or a
time limit it is known which tests had passed and which one was running.

Lines: {"started": id}, and {"test": id, "outcome": passed|failed|error|skipped, "message": the traceback's
end, "seconds": s}.
"""

import importlib
import json
import sys
import time
import traceback
import unittest
from pathlib import Path

MESSAGE_CHARACTERS = 2000


class RecordingResult(unittest.TestResult):
    """Writes every outcome immediately; a failing subtest fails its test."""

    def __init__(self, record):
        super().__init__()
        self.record = record
        self.began = time.monotonic()

    def write(self, **line):
        self.record.write(json.dumps(line) + "\n")
        self.record.flush()

    def outcome(self, test, outcome, message=""):
        seconds = round(time.monotonic() - self.began, 3)
        self.write(test=test.id(), outcome=outcome, message=message, seconds=seconds)

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        self.write(started=test.id())

    def addSuccess(self, test):
        self.outcome(test, "passed")

    def addFailure(self, test, err):
        self.outcome(test, "failed", last_error(err))

    def addError(self, test, err):
        self.outcome(test, "error", last_error(err))

    def addSkip(self, test, reason):
        self.outcome(test, "skipped", reason)

    def addExpectedFailure(self, test, err):
        self.outcome(test, "passed")

    def addUnexpectedSuccess(self, test):
        self.outcome(test, "failed", "unexpected success")

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.outcome(
                test, "failed" if issubclass(err[0], test.failureException) else "error", last_error(err)
            )


def last_error(err):
    """The end of a traceback, where Paddle puts its own error summary."""
    return "".join(traceback.format_exception(*err))[-MESSAGE_CHARACTERS:]


def run(module_name, record):
    import paddle
    import static_mode_white_list  # Paddle's tools folder is on the path

    if module_name in static_mode_white_list.STATIC_MODE_TESTING_LIST:
        paddle.enable_static()
    base = paddle.base
    with (
        base.program_guard(base.Program(), base.Program()),
        base.scope_guard(base.core.Scope()),
        base.unique_name.guard(),
    ):
        module = importlib.import_module(module_name)
        unittest.TestLoader().loadTestsFromModule(module).run(RecordingResult(record))


if __name__ == "__main__":
    with Path(sys.argv[2]).open("w") as record:
        try:
            run(sys.argv[1], record)
        except Exception:
            message = traceback.format_exc()[-MESSAGE_CHARACTERS:]
            record.write(
                json.dumps({"test": "import", "outcome": "error", "message": message, "seconds": 0}) + "\n"
            )
            raise
