"""Overlap of matmuls and communication, on two ranks of the virtual NPU.

cases.py     the cases: an operator in one direction, or the linear layers of a block
jobs.py      starts two ranks with a link of given bandwidth, and reads their measurements
worker.py    one rank: verifies, then times all settings alternately
transfers.py operators that hide their own transfers: links, records and goals
ring.py      ring attention: its cases, and what its transfers can hide behind; ring_rank.py: on a rank
experts.py   expert parallelism, likewise; experts_rank.py: on a rank
results.py   records, goals and the table
"""
