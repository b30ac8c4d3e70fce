"""Routers in a dry run: all experts get equally many tokens.

A dry run does not compute the scores of a router, so the sizes that depend on its choice are unknown. The
assumed choice of token t is the K experts

    (t K + k) mod E,    k = 0 to K - 1

T tokens, K experts per token, E experts.
"""

from __future__ import annotations

import functools

import numpy as np
import paddle


@functools.cache
def install() -> None:
    """From now on, ``paddle.topk`` and ``Tensor.topk`` choose evenly. Their values stay unknown."""
    upstream = paddle.topk

    @functools.wraps(upstream)
    def topk(x, k, *args, **kwargs):
        values, indices = upstream(x, k, *args, **kwargs)
        choice = np.arange(indices.size) % x.shape[-1]
        indices.set_value(choice.reshape(indices.shape))
        return values, indices

    paddle.topk = paddle.Tensor.topk = topk
