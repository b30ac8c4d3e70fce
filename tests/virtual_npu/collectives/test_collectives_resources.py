"""Scheduling of the threads that communicate, and descriptors of shared memory."""

import os
import threading
from pathlib import Path

import pytest
import ranks

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "collectives" / "resources.py"


def may_schedule_first() -> bool:
    answers = []

    def ask():
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            answers.append(True)
        except PermissionError:
            answers.append(False)

    thread = threading.Thread(target=ask)  # the setting is the thread's alone
    thread.start()
    thread.join()
    return answers[0]


@pytest.mark.parametrize("setting", ["0", "1"])
def test_streams_are_threads_like_others_unless_asked_for(setting, tmp_path):
    reports = ranks.run(PROGRAM, 2, tmp_path, VIRTUAL_NPU_REALTIME=setting)
    expected = "fifo" if setting == "1" and may_schedule_first() else "other"
    assert [set(report["policies"]) for report in reports] == [{expected}] * 2
    if setting == "1" and expected == "other":
        assert "VIRTUAL_NPU_REALTIME=1 has no effect" in (tmp_path / "0.log").read_text()


def test_a_group_that_cannot_be_made_leaves_no_descriptor(tmp_path):
    first, second = ranks.run(PROGRAM, 2, tmp_path)
    for report in (first, second):
        assert all("cannot be sized: File too large" in error for error in report["errors"])
    # The first rank keeps each group's memory open for ranks that have yet to join.
    assert (first["opened"], second["opened"]) == (len(first["errors"]), 0)
