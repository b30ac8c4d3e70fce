"""The benchmarks, in a clone: ``python -m benchmarks NAME``; without a name it lists them.

    ops/ step/ models/ overlap/    one benchmark each, from command.py on;  varlen.py device.py    one each
    work/          one file per operator: its tensors, golden values, bytes and flops, how frameworks run it
    contenders.py  the contenders, and how their processes are started, stopped while idle, and called
    worker.py      the other end: a contender's process answers with the methods of a benchmark object
    contest.py     from the arguments to the records; whether losses agree
    machine.py     facts that the figures depend on;  timing.py rounds, medians, spreads
    options.py     options shared by benchmarks, and their validation
    report.py      table, JSON lines, comparison

A contender's process needs only Python, numpy and its framework, so torch may live in another environment.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # PYTHONPATH of a process
