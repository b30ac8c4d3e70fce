"""Reports of defects in Paddle and its libraries: each a program with its report as docstring.

report    reads the docstrings
page      the page of the documentation that shows them
outcome   runs a program, and compares what it prints with the report
fixed     workarounds for older releases, and mentions of releases that are no workarounds
"""
