"""Heartbeats between the machines of a run: detects a lost machine and ends all other ranks.

A separate process sends the heartbeats of each rank, because a thread of the rank cannot run while native
code holds the GIL. Rank 0's process listens on rank 0's own endpoint, which Paddle never opens, and runs the
``Coordinator``. The process of every rank, including rank 0, runs a ``Worker`` that connects to it. Both
sides send an empty line every ``INTERVAL``. The coordinator decides which machine is lost and notifies all
workers; a worker that receives nothing from the coordinator decides for itself. Timeouts count own intervals
instead of seconds, so pausing and continuing a whole run loses no machine.

    worker -> coordinator    check_alive (are all ranks alive?), exited (the rank has exited: reason),
                             goodbye (the rank's work is complete),
                             coordinator_lost (read by a paused first machine when it continues)
    coordinator -> worker    alive (answer to check_alive), abort (message, exit_code),
                             shutdown (answer to goodbye, and when the coordinator exits)

The coordinator's port is reachable by anyone. A worker first proves its identity in a handshake; text that it
sends is truncated and made printable before it is shown. Time and number of pending handshakes are limited.

    protocol.py      which rank is on which machine, messages, handshake
    coordinator.py   accepts the workers' connections; decides which machine is lost
    worker.py        one rank's connection to the coordinator
    process.py       the process: commands of its rank, end of its rank

``llm_npu.launch.machine_watch`` is the rank's side. The process imports this package as ``heartbeat``, and
otherwise only the standard library, so that it starts within a tenth of a second.
"""

import os

INTERVAL = 0.5  # seconds between two heartbeats

# In intervals:
TIMEOUT = 10  # without a heartbeat, after which a rank counts as lost
JOIN_TIMEOUT = 60  # within which every rank has to connect
EXIT_GRACE = 2  # from the exit of one rank to the verdict: is its whole machine going down?
DRAIN = 120  # that the coordinator stays for the other ranks when rank 0 is done

# In seconds:
EXIT_DELAY = (
    0.3  # before an exit is reported; a machine that is being killed takes this process with the rank
)
ABORT_GRACE = 3.0  # for ranks to exit by themselves, with their own error, when another rank has failed
KILL_AFTER = 2.0  # until a rank that should have exited is killed
HANDSHAKE_TIMEOUT = 5.0

EXIT_LOST, EXIT_FAILED, EXIT_BAD_SECRET = os.EX_TEMPFAIL, 1, 2  # exit codes of the ranks
MAX_LINE = 1 << 15  # bytes
MAX_TEXT = 2000  # characters of a message from another machine
MAX_PENDING = 64  # handshakes
