"""The benchmarks, in a clone: ``python -m benchmarks NAME``; without a name it says which there are.

    ops/ step/ varlen/ models/ overlap/ device/ profile/ planner/    one benchmark each, from command.py on
    work/          one file per operator: its tensors, what is right, bytes and flops, how frameworks run it
    contenders.py  who takes part, and how their processes are started, stopped while idle, and asked
    worker.py      the other end: a contender's process answers by the methods of an object of the benchmark's
    contest.py     from the arguments to the records; whether losses agree
    machine.py     what the figures depend on;  timing.py turns, medians, spreads
    options.py     the options that benchmarks share, and what can be wrong with them
    report.py      table, JSON lines, comparison;  chart.py a picture of them

A contender's process needs Python and numpy and its framework, so that torch may live in another environment.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # what a process needs on its path
