"""Several processes, one for each device: starting, watching and restarting them.

    processes             starts the ranks of this machine, or joins as one of them
    watchdog              watches the ranks: failures, signals, refusals
    fake_process_group    stands in for the other ranks of a dry run

Importing this package imports no framework.
"""

from .processes import join, kept, meet, start

__all__ = ["join", "kept", "meet", "start"]
