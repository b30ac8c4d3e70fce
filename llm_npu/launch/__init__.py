"""Several processes, one for each device: starting, watching and restarting them.

    processes             starts the ranks of this machine, and joins as one of them
    watchdog              what becomes of them: their ends, signals, what a rank refuses
    fake_process_group    stands for the other ranks in a dry run

Importing this package imports no framework.
"""

from .processes import join, kept, meet, start

__all__ = ["join", "kept", "meet", "start"]
