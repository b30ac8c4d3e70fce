"""The optimizer of a run, inside the wrappers of parallelism."""

from __future__ import annotations

from collections.abc import Iterator


def wrappers(optimizer) -> Iterator:
    """The optimizer and those that it wraps, outermost first."""
    inside = None
    while optimizer is not None and optimizer is not inside:
        yield optimizer
        inside = optimizer
        optimizer = vars(inside).get("_inner_opt", vars(inside).get("_optim"))  # stage 3's is its own _optim


def innermost(optimizer):
    """The optimizer that computes the update."""
    *_, inner = wrappers(optimizer)
    return inner
