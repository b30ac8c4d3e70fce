"""What differs between the machines of a run is found before the first step.

facts.py         what one machine is: versions, code, data, environment variables, clock, memory, disk
differences.py   which of these must be equal, and the table of those that are not
feature.py       the check as a part of a run
"""
