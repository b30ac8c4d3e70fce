"""What differs between the machines of a run is found before the first step.

facts.py         what one machine is: versions, code, data, environment variables, clock, memory, disk
differences.py   which of these must be equal, and the table of those that are not
feature.py       their comparison as a part of a run
without_run.py   the comparison alone, by comparing_process.py on each machine
rendezvous.py    Paddle's launcher on one machine, with a limit to its wait for the others
master.py        where the launchers meet, for all who can reach it
hccl.py          HCCL's variables on this machine, before Paddle is imported
"""
