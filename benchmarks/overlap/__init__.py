"""Matmul and communication at the same time, on two ranks of the virtual NPU.

cases.py     what is measured: an operator in one direction, or the linear layers of a block
jobs.py      starts two ranks with a link of some speed, and reads what they measured
worker.py    one rank: verifies, then times all settings in turns
results.py   records, goals, the table and the chart
"""
