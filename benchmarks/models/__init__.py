"""PaddleNLP's models as they come, with one fused operator, and with all: training and generation.

size.py     the model of each family that is measured, and its tokens
worker.py   a contender's process: one model with some fused operators
turns.py    the groups of contenders that take turns, and what their answers must have in common
results.py  records, tables and the chart
"""

from .size import QUICK, SIZES, ModelSize

__all__ = ["QUICK", "SIZES", "ModelSize"]
