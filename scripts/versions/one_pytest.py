"""Runs pytest and records each test as it ends: python one_pytest.py RECORD ARGUMENT...

One line of JSON per start and outcome, so that a crash shows the test in which it happened.
"""

import json
import os
import sys
from pathlib import Path

import pytest


class Recorder:
    """A pytest plugin that writes events to a file."""

    def __init__(self, file):
        self._file = file

    def _write(self, **entry):
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def pytest_runtest_logstart(self, nodeid, location):
        self._write(started=nodeid)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self._write(test=report.nodeid, outcome=report.outcome, message=_message(report))

    def pytest_collectstart(self, collector):
        if isinstance(collector, pytest.Module):
            self._write(started=collector.nodeid)

    def pytest_collectreport(self, report):
        if report.outcome == "failed":
            self._write(test=report.nodeid, outcome="failed", message=_message(report))
        else:
            self._write(collected=report.nodeid)


def _message(report):
    """The failure of a test, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = [line.strip() for line in (crash.message if crash else report.longreprtext).splitlines()]
    errors = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    return errors[-1] if errors else next(filter(None, lines), "")


if __name__ == "__main__":
    record, *arguments = sys.argv[1:]
    sys.path[0] = os.getcwd()  # as `python -m pytest` has it
    with Path(record).open("a") as opened:
        sys.exit(pytest.main(arguments, plugins=[Recorder(opened)]))
