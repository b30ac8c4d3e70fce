"""Evidence from a card: where it differs from the virtual NPU, as one folder that can be sent.

    pieces        the pieces of the examination, their order and time limits; the process of a piece
    command       the options; runs the pieces one after another and writes the result after each
    process       runs a process with a time limit and ends all that it started; how it ended is a result, too
    journal       what a piece reports, check by check, so that the last line tells where it ended
    result, page, scrub
                  all results as JSON and HTML, without names of hosts, users and folders
    operators, programs, training, trained, rank, rank_checks
                  the pieces themselves: parity, doctor, trainer, planner, profiler
    reference     the virtual NPU's results: backends of operators, and the losses of a small training run

Importing this package imports no framework.
"""
