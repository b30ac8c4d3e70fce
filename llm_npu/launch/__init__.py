"""The launcher: starts one process per device, supervises them and restarts them.

    processes             starts the ranks of this machine, or prepares a process that a launcher started
    supervisor            waits for the ranks: failures, signals, bad input
    folder_lock           keeps a second run out of the output folder
    own_file              keeps a run from writing through a link or into a FIFO
    machine_watch         ends this rank when another machine of the run is lost
    heartbeat/            the process beside each rank that detects the loss
    fake_process_group    emulates the other ranks of a dry run

Importing this package imports no framework.
"""

from .machine_watch import watch_machines
from .processes import prepare_dry_run, prepare_rank, reserved_port, start

__all__ = ["prepare_dry_run", "prepare_rank", "reserved_port", "start", "watch_machines"]
