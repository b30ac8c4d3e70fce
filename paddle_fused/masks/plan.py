"""The result of compiling a mask: one of CANN's sparse modes, with its band and mask tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .intents import Mask
from .modes import UNBOUNDED
from .sequences import Sequence


@dataclass(frozen=True)
class SparsePlan:
    """The arguments of CANN's operator that express the mask of one call.

    ``packed``: as sequences in layout TND, otherwise as a batch. ``mask``: "none", "compressed",
    "compressed_prefix" or "full"; a full mask is ``full`` on a matrix of ``full_shape``. ``zero_rows``:
    queries that see no key give zeros; without it there must be none, which ``check_rows`` checks if it
    depends on the values of a tensor. ``sequences``: what is computed, of all packed tokens or of one batch
    element.

    ``blind``: bool [B, H, Sq], queries that the mask lets see some key though they are to see none: their
    results are zeroed. ``tokens``: the packed tokens by their place in the batch [B * S], where sequences
    share some; ``own``: the place of each token of the batch among the packed ones. ``constants``: what the
    backends keep for the next call with this plan, such as tensors on a device.
    """

    packed: bool
    sparse_mode: int
    why: str
    mask: str = "none"
    pre_tokens: int = UNBOUNDED
    next_tokens: int = UNBOUNDED
    prefix: tuple[int, ...] | None = None
    full: Mask | None = None
    full_shape: tuple[int, int] | None = None
    zero_rows: bool = False
    sequences: tuple[Sequence, ...] = ()
    blind: np.ndarray | None = field(default=None, compare=False)
    tokens: np.ndarray | None = field(default=None, compare=False)
    own: np.ndarray | None = field(default=None, compare=False)
    constants: dict = field(default_factory=dict, compare=False, repr=False)

    @property
    def query_lens(self) -> tuple[int, ...]:
        return tuple(s.query_len for s in self.sequences)

    @property
    def key_lens(self) -> tuple[int, ...]:
        return tuple(s.key_len for s in self.sequences)


def tokens(low: int | None, high: int | None, diagonal: int) -> tuple[int, int]:
    """pre_tokens and next_tokens of the band ``i + low <= j <= i + high``, counted from ``diagonal``."""
    return UNBOUNDED if low is None else diagonal - low, UNBOUNDED if high is None else high - diagonal
