"""Acceptance of a card: its differences from the virtual NPU, collected in one folder to send.

    checks        the checks, their order and time limits; the process of a check
    command       the options; runs one check after another and writes the result after each
    process       runs a process with a time limit and kills all its descendants
    journal       the outcomes of a check, case by case, which survive a crash of its process
    result, scrub all outcomes as JSON and HTML, without names of hosts, users and folders
    operators, programs, training, rank, rank_checks
                  the checks themselves: parity, doctor, trainer, planner, profiler
    reference     the virtual NPU's recorded results: backends of operators, losses of a small training

Importing this package imports no framework.
"""
