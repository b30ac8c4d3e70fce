"""Attention of sequences that are split over the ranks of a group. Import its modules by name.

exchange    all-to-all in pairwise rounds: heads for tokens
heads       which heads each rank of Ulysses has
ulysses     attention with a share of the heads on each rank
ring        keys and values circulate around the ring
hybrid      a ring over some ranks, and a share of the heads on each of the others
gathered    every rank gathers all keys, for masks that the ring does not support
zigzag      which tokens a rank of a ring holds
blocks      the blocks of scores that a rank of a ring computes
kernels     attention of a block, and its gradient for the statistics of whole rows
"""

# Names of profiler events around the calls that start transfers; the profile report reads them.
RING_EVENT, EXCHANGE_EVENT = "ring transfer", "exchange of heads"
