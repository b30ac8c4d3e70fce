"""Replacements of layer computations, one file per fused operator."""
