"""Attention of sequences that are split over the ranks of a group. Import its modules by name.

exchange    all-to-all in pairwise rounds: heads for tokens
ulysses     attention with a share of the heads on each rank
"""
