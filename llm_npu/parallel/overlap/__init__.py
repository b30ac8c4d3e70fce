"""Overlaps matmuls with their communication in tensor- and sequence-parallel layers.

    from llm_npu.parallel import overlap

    y = overlap.matmul_all_reduce(x, weight, group)  # the planner chooses the backend
    report = overlap.apply_overlap(model)  # the parallel layers of a PaddleNLP model use it

docs/overlap.md explains the backends, the planner and exposed communication.
"""

from __future__ import annotations

from .apply import apply_overlap, overlapped_layers, remove_overlap
from .operators import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter, replicated_matmul
from .planner import OverlapPlan, Planner, chooser, default_planner
from .product import Product, Setting

__all__ = [
    "OverlapPlan",
    "Planner",
    "Product",
    "Setting",
    "all_gather_matmul",
    "apply_overlap",
    "chooser",
    "default_planner",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "overlapped_layers",
    "remove_overlap",
    "replicated_matmul",
]
