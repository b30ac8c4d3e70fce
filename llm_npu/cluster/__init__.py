"""Rendezvous of a run's machines, and comparison of their versions, code, data and settings.

comparison       facts of a machine (versions, code, data, variables, clock, memory), table of differences
machine_check    the comparison in a run, before its first step
without_run      the comparison without a run
rendezvous       Paddle's launcher on one machine, with a timeout for the other machines
master           the launchers' master: a hardened HTTP server
"""
