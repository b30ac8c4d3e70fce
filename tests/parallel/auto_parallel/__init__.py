"""Operators whose tensors are split over two processes (Paddle's auto-parallel), against one process.

`rows` holds the table, a file for each operator; `program` runs all of it in the two processes.
"""
