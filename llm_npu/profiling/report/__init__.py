"""Explains what a profiler has written: where the time of a training step goes, and what to do about it.

In the order of the work: ``tree`` finds files; ``chrome_trace``, ``timeline``, ``op_summary`` read them;
``load`` puts together each rank; ``measure``, ``fusion``, ``stragglers`` add up; ``advice`` concludes;
``plain`` and ``page`` write; ``compare`` sets two profiles side by side. Nothing here imports a framework.
"""
