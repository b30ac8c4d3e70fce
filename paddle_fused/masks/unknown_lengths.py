"""Plans in a static graph that does not know the sequence lengths, for batches and for layout TND."""

from __future__ import annotations

from .intents import Band, Dense, Intersection, Mask
from .modes import UNBOUNDED
from .plan import SparsePlan


def unknown_lengths(bands: list[Band], others: list[Mask], packed: bool) -> SparsePlan:
    """The plan of a mask that does not depend on the lengths. Raises ValueError for one that does."""
    if not bands and not others:
        return SparsePlan(packed, 0, "no mask")
    if not bands and len(others) == 1 and isinstance(others[0], Dense):
        dense = others[0]
        return SparsePlan(packed, 1, "a mask of its own", "full", full=dense, zero_rows=not packed)
    aligns = {band.align for band in bands}
    if not others and len(aligns) == 1:
        left = min((b.left for b in bands if b.left is not None), default=None)
        right = min((b.right for b in bands if b.right is not None), default=None)
        bottom_right = aligns == {"bottom_right"}
        if (left, right) == (None, 0):
            return SparsePlan(packed, 3 if bottom_right else 2, "causal, whatever the lengths", "compressed")
        if bottom_right:
            pre, next_ = (UNBOUNDED if bound is None else bound for bound in (left, right))
            return SparsePlan(packed, 4, "a band, whatever the lengths", "compressed", pre, next_)
    raise ValueError(
        f"{Intersection((*bands, *others))!r} needs the sequence lengths, which this static graph does not "
        "know: give them in the InputSpec."
    )
