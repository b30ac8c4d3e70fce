"""Operators on distributed tensors (``paddle.distributed``'s auto-parallel), computed on local shards.

``rule`` defines, as data, which dimensions of an operator's tensors may be sharded. ``local_map`` reshards
the tensors as the rule requires, runs the operator on the local shards, and declares the results' placements.
"""

from .local_map import Sharding, is_split, mesh_of
from .rule import Dims, Layout, ShardingRule, numbered

__all__ = ["Dims", "Layout", "Sharding", "ShardingRule", "is_split", "mesh_of", "numbered"]
