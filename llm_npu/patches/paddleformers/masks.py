"""PaddleFormers' attention masks on npu."""

from __future__ import annotations

import functools


@functools.cache
def fix_npu_masks() -> None:
    """PaddleFormers 1.1 and 1.2 on npu: generation with a cache fails ("The data_type of input tensor in list
    isn't consistent, the first tensor is bool, but 1th tensor is int32").

    ``utils/masking_utils.py`` makes the causal mask int32 and the padding mask floating-point on npu, and
    then joins them with bool masks. With the patch they are bool, as on other devices.
    """
    from paddleformers.utils import masking_utils

    masking_utils.get_env_device = lambda: "cpu"
