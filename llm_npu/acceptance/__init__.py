"""Card acceptance: compares a card with the virtual NPU and writes the differences to one folder.

    checks        the list of checks with order and time limits; entry point of a check's process
    command       the options; runs the checks in turn and writes the result after each check
    process       runs a process with a time limit and kills all its descendants
    journal       the outcome of each case; survives a crash of the check's process
    result, scrub all outcomes as JSON and HTML, without host, user and folder names
    operators, programs, training, rank, rank_checks
                  the checks: parity, doctor, trainer, planner, profiler
    reference     recorded results of the virtual NPU: operator backends, losses of a small training run

Importing this package imports no framework.
"""
