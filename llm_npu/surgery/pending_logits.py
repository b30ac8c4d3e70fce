"""Deferred logits: a placeholder that the head passes to a criterion, which computes the loss in chunks.

Shapes: B batch, S sequence, H hidden size, V vocabulary size (of this process's shard if it is sharded).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import paddle

import paddle_fused

_pending = ContextVar("pending_logits", default=False)
_loss_only = ContextVar("loss_only", default=False)


def are_pending() -> bool:
    """Whether heads currently return ``PendingLogits``."""
    return _pending.get()


@contextmanager
def pending(on: bool) -> Iterator[None]:
    """A context in which heads return ``PendingLogits`` if ``on``."""
    token = _pending.set(on)
    try:
        yield
    finally:
        _pending.reset(token)


@contextmanager
def loss_only() -> Iterator[None]:
    """Context in which models in evaluation mode return no logits with a loss, as they do in training."""
    token = _loss_only.set(True)
    try:
        yield
    finally:
        _loss_only.reset(token)


def are_unread(model) -> bool:
    """Whether the logits of a call of ``model`` with labels are unused."""
    return model.training or _loss_only.get()


class PendingLogits:
    """logits = hidden weight, with the casts and the shape that the libraries' criteria read.

    Args:
        hidden: [B, S, H].
        weight: [H, V], or [V, H] with ``transposed``.
        group: the process group that shards the vocabulary, or None.
        columns: V of the logits that the head would return.
    """

    def __init__(self, hidden, weight, transposed: bool, group, columns: int):
        self._inputs = hidden, weight
        self._options = {"transpose_weight": transposed, "group": group}
        self.shape = [*hidden.shape[:-1], columns]

    def astype(self, dtype):
        """No-op; the loss is always computed in float32."""
        return self

    cast = astype

    def dim(self) -> int:
        return len(self.shape)

    def losses(self, labels, ignore_index: int):
        """The losses, float32 [B, S], 0 where ``labels`` [B, S] are ``ignore_index``."""
        with paddle.amp.auto_cast(False):
            return paddle_fused.linear_cross_entropy(
                *self._inputs, labels, ignore_index=ignore_index, reduction="none", **self._options
            )
