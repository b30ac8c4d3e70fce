"""Operators on tensors that are split over processes (``paddle.distributed``'s auto-parallel): part by part.

``rule`` says as data which dimensions of an operator's tensors may be split; ``local_map`` brings the tensors
where the rule wants them, computes on the parts that this process has, and says where the results lie.
"""

from .local_map import Sharding, is_split, mesh_of
from .rule import Dims, Layout, ShardingRule, numbered

__all__ = ["Dims", "Layout", "Sharding", "ShardingRule", "is_split", "mesh_of", "numbered"]
