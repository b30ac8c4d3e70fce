"""Evidence from a card: its differences from the virtual NPU, collected in one folder to send.

    pieces        the pieces of the examination, their order and time limits; the process of a piece
    command       the options; runs the pieces one after another and writes the result after each
    process       runs a process with a time limit and ends all its children; its exit status is a result
    journal       the results of a piece, check by check; the last line tells where a lost process was
    result, page, scrub
                  all results as JSON and HTML, without names of hosts, users and folders
    operators, programs, training, trained, rank, rank_checks
                  the pieces themselves: parity, doctor, trainer, planner, profiler
    reference     the virtual NPU's results: backends of operators, and the losses of a small training run

Importing this package imports no framework.
"""
