"""Time and memory of a report on a large profile.

    python -m benchmarks profile [--events N] [--ranks R] [--json]

Writes a synthetic profile with that many events, runs ``llm-npu profile report`` on it with a
page, in a separate process, checks that every task is in the report, and prints its seconds, its peak memory,
and whether the goals (20 s and 2 GB for a million events) are met.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import ROOT, contest, machine, options, report
from benchmarks.contest import Wrong

from . import tree

GOAL_SECONDS, GOAL_GB, GOAL_EVENTS = 20, 2, 1_000_000

REPORT = """
import json, resource, sys
from llm_npu.profiling.__main__ import main
status = main(["report", sys.argv[1], "--html", sys.argv[2]])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"status": status, "kb": used.ru_maxrss, "cpu": used.ru_utime + used.ru_stime}))
"""


def bench(events: int, ranks: int = 1) -> dict:
    """Wall-clock and processor seconds, gigabytes, and megabytes of a report's files."""
    with tempfile.TemporaryDirectory() as name:
        folder, page = Path(name) / "profile", Path(name) / "report.html"
        tasks = tree.write(folder, events, ranks)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        entries = [str(ROOT), os.environ.get("PYTHONPATH")]
        command = [sys.executable, "-c", REPORT, str(folder), str(page)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, entries))}
        start = time.perf_counter()
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.perf_counter() - start
        result = json.loads(done.stdout.splitlines()[-1])
        if result["status"] or f"{ranks} ranks, {tasks} tasks" not in done.stdout or not page.exists():
            raise Wrong(f"{tasks} tasks were written; the report says:\n{done.stdout[:500]}")
    figures = {"seconds": seconds, "cpu_seconds": result["cpu"], "gb": result["kb"] * 1024 / 1e9}
    figures["megabytes_read"] = size / 1e6
    met = events >= GOAL_EVENTS and seconds < GOAL_SECONDS and figures["gb"] < GOAL_GB
    return {"machine": machine.facts(1), "events": events, "ranks": ranks, **figures, "goal_met": met}


def text(result: dict) -> str:
    """The figures in one paragraph."""
    goal = report.goal(result["goal_met"], f"{GOAL_SECONDS} s and {GOAL_GB} GB for {GOAL_EVENTS}")
    if result["events"] < GOAL_EVENTS:
        goal = "too few events for the goal"
    figures = (
        f"{result['seconds']:.1f} s ({result['cpu_seconds']:.1f} s of CPU), peak memory {result['gb']:.2f} GB"
    )
    return (
        f"{result['events']} events, {result['ranks']} ranks, {result['megabytes_read']:.0f} MB: {figures}. "
        f"{goal}. {report.heading(result['machine'])}"
    )


def main(words):
    parser = options.bare("profile", __doc__)
    parser.add_argument("--events", type=int, default=GOAL_EVENTS)
    parser.add_argument("--ranks", type=int, default=1)
    return contest.run_here(parser, words, bench, text)
