"""What the benchmarks share: the work, the contenders and their processes, the limits, timing and the report.

    work/          one file per operator: its tensors, what is right, bytes and flops, how frameworks run it
    cases.py       which sizes of them are measured, and the goals
    contenders.py  who takes part, and how their processes are started, stopped while idle, and asked
    worker.py      the other end: a contender's process, with paddle_worker.py or torch_worker.py
    measure.py     one case on all contenders: prepare, verify.py, time in turns
    limits.py      the machine's bandwidth;  machine.py what the figures depend on
    timing.py      turns, medians, spreads
    options.py     the options that scripts share, and what can be wrong with them
    report.py      table, JSON lines, comparison;  chart.py pictures

A contender's process needs Python and numpy and its framework, so that torch may live in another environment.
"""
