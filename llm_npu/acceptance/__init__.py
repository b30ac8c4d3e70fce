"""Evidence from a card: what differs there from the virtual NPU, as one folder that can be sent.

    pieces        what is looked at, in which order, with which limits of time; the process of a piece
    command       the options; runs the pieces one after the other, writes the result after each
    process       a process that ends in time, with all that it has started: how it ended is an answer, too
    journal       what a piece says, check by check, so that the last line names where it ended
    result, page, scrub
                  all findings as JSON and as a page, without names of hosts, users and folders
    operators, programs, training, trained, rank, rank_checks
                  what the pieces do, with what the project has: parity, doctor, trainer, planner, profiler
    reference     what the virtual NPU does: modes of operators, and the losses of a small training

Importing this package imports no framework.
"""
