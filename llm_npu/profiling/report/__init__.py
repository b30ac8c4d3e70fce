"""Explains a profile: where the time of a training step is spent, and how to reduce it.

In processing order: ``tree`` finds files; ``chrome_trace``, ``timeline`` and ``op_summary`` read them;
``load`` assembles each rank; ``measure``, ``fusion`` and ``stragglers`` compute totals; ``advice`` derives
recommendations; ``plain`` and ``page`` write the report; ``compare`` compares two profiles. Nothing here
imports a framework.
"""
