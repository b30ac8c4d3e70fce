"""Overlap of matmuls and communication, on two ranks of the virtual NPU.

cases.py     the cases: an operator in one direction, or the linear layers of a block
jobs.py      starts two ranks with a link of given bandwidth, and reads their measurements
worker.py    one rank: verifies, then times all settings alternately
ring.py      ring attention: its cases, and what its transfers can hide behind
ring_rank.py ring attention on a rank
results.py   records, goals and the table
"""
