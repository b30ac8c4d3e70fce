"""The launcher: starts one process per device, supervises them and restarts them.

    processes             starts the ranks of this machine, or prepares a rank started by a launcher
    supervisor            waits for the ranks: failures, signals, bad input
    folder_lock           prevents two runs from using one output folder
    own_file              prevents a run from writing through a link or into a FIFO
    machine_watch         terminates this rank when another machine is lost
    heartbeat/            the process next to each rank that detects lost machines
    fake_process_group    emulates the other ranks of a dry run

Importing this package imports no framework.
"""

from .machine_watch import watch_machines
from .processes import prepare_dry_run, prepare_rank, reserved_port, start

__all__ = ["prepare_dry_run", "prepare_rank", "reserved_port", "start", "watch_machines"]
