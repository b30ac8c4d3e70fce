"""PaddleNLP's models: upstream, with one fused operator, and with all; training and generation.

size.py     the measured model of each family, and its tokens
worker.py   a contender's process: one model with some fused operators
turns.py    groups of contenders that alternate, and the comparison of their results
results.py  records and tables
"""

from .size import QUICK, SIZES, ModelSize

__all__ = ["QUICK", "SIZES", "ModelSize"]
