"""The image tokens of a batch, and the features that replace them.

Legend: B batch, S sequence, M image tokens, H hidden size.
"""

from __future__ import annotations

import paddle

from llm_npu.core.errors import UserError


def places(is_image: paddle.Tensor, features: paddle.Tensor) -> paddle.Tensor:
    """int64 [M]: the positions of image tokens among all B S tokens.

    Args:
        is_image: bool [B, S].
        features: [M, H].

    Raises:
        UserError: if the numbers of image tokens and of features differ.
    """
    indices = paddle.nonzero(is_image.flatten()).flatten()
    if indices.shape[0] != features.shape[0]:
        raise UserError(
            f"Image features and image tokens do not match: tokens: {indices.shape[0]}, features "
            f"{features.shape[0]}; use one image token for each merged patch of image_grid_thw"
        )
    return indices


def put(states: paddle.Tensor, indices: paddle.Tensor, features: paddle.Tensor, accumulate: bool = False):
    """``states`` [B, S, H] with features [M, H] at ``indices``, or with features added there.

    Features are cast: under AMP O1, embeddings of float32 weights are float32, but features are 16-bit.
    """
    flat = states.reshape([-1, states.shape[-1]])
    features = features.astype(flat.dtype)
    return paddle.index_put(flat, (indices,), features, accumulate=accumulate).reshape(states.shape)
