"""PaddleOCR-VL: forwards of its vision tower without host fallbacks on a card.

Upstream computes the same, with operators that a card's plugin lacks for these dtypes: searchsorted,
repeat_interleave, assignments to slices and indexing by tensors of int64, and interpolation in bfloat16.

Legend: P patches of all images, H hidden size of the vision tower, D head size.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import paddle
import paddle.nn.functional as F

from llm_npu.surgery import multimodal_rotary
from llm_npu.surgery.registry import Replacement
from paddle_fused import masks

from . import grids, image_tokens


def with_image_features(model, arguments: dict) -> dict:
    """The model's arguments with token and image embeddings in place of pixels."""
    pixels, image_grid_thw = arguments.get("pixel_values"), arguments.get("image_grid_thw")
    if pixels is None or arguments.get("inputs_embeds") is not None:
        return arguments
    tokens = arguments["input_ids"]
    embeddings = model.model.embed_tokens(tokens)
    with grids.read_once(image_grid_thw) as sizes:
        ends = np.cumsum([0, *sizes.prod(1)]).astype(np.int32)
        states = model.visual(
            pixel_values=pixels.astype(embeddings.dtype).unsqueeze(0),
            image_grid_thw=image_grid_thw,
            cu_seqlens=paddle.to_tensor(ends),
            interpolate_pos_encoding=True,
            return_pooler_output=False,
            use_rope=True,
        ).last_hidden_state
        features = model.mlp_AR(states, image_grid_thw)
    places = image_tokens.places(tokens == model.config.image_token_id, features)
    embeddings = image_tokens.put(embeddings, places, features)
    return {**arguments, "inputs_embeds": embeddings, "pixel_values": None}


def embed_patches(self, pixel_values, position_ids=None, image_grid_thw=None, interpolate_pos_encoding=False):
    """The forward of PaddleOCRVisionEmbeddings: pixels [1, P, 3, height, width] -> [1, P, H].

    Positions are interpolated in float32: the plugin has no such kernel for bfloat16.
    """
    weight = self.patch_embedding.weight
    patches = self.patch_embedding(pixel_values.squeeze(0).astype(weight.dtype)).flatten(-3)
    side = int(self.num_positions**0.5)
    sizes = grids.on_host(image_grid_thw).tolist()
    table = self.position_embedding.weight.astype("float32")
    table = table.reshape([1, side, side, self.embed_dim]).transpose([0, 3, 1, 2])
    positions = {}
    for _, *size in sizes:
        if tuple(size) not in positions:
            interpolated = F.interpolate(table, size=size, mode="bilinear", align_corners=False)
            positions[tuple(size)] = interpolated.flatten(-2).squeeze(0).T.astype(weight.dtype)
    rows = [positions[height, width] for frames, height, width in sizes for _ in range(frames)]
    return (patches + paddle.concat(rows)).unsqueeze(0)


def encode(self, inputs_embeds, image_grid_thw=None, use_rope=False, **options):
    """The forward of PaddleOCREncoder: one mask object and one rotary table for all layers.

    Upstream's forward is used for windows, and to return the states of each layer.
    """
    returned = options.get("output_hidden_states") or options.get("output_attentions")
    if returned or options.get("window_size", -1) > 0:
        options |= {"image_grid_thw": image_grid_thw, "use_rope": use_rope}
        return type(self).forward(self, inputs_embeds, **options)
    sizes = grids.on_host(image_grid_thw)
    mask = masks.documents([sizes.prod(1).tolist()], causal=False)
    config, hidden_states = self.config, inputs_embeds
    tables = (
        multimodal_rotary.tables_of_patches(self.rotary_pos_emb, grids.rows_and_columns(sizes))
        if use_rope
        else None
    )
    is_recomputed = (
        config.recompute_granularity == "full"
        and config.recompute_method == "uniform"
        and config.recompute_num_layers == 1
    )
    for layer in self.layers:
        recomputed = is_recomputed and not hidden_states.stop_gradient
        run = partial(self.recompute_training, layer) if recomputed else layer
        hidden_states = run(hidden_states, mask, rope_emb=tables)[0]
    return type(self).forward.__globals__["BaseModelOutput"](last_hidden_state=hidden_states)


def merge_patches(self, image_features, image_grid_thw):
    """The forward of Projector: patches [1, P, H] -> a token of the text for each block of patches."""
    height, width = self.merge_kernel_size
    order = paddle.to_tensor(grids.blocks(grids.on_host(image_grid_thw), height, width))
    patches = paddle.gather(self.pre_norm(image_features.squeeze(0)), order)
    merged = patches.reshape([-1, height * width * patches.shape[-1]])
    return self.linear_2(self.act(self.linear_1(merged)))


# By variant of attention.
REPLACEMENTS = {
    "vision encoder": Replacement(forward=encode, is_site=False),  # its mask is for fused layers only
    "patch embedding": Replacement(forward=embed_patches, is_site=False, independent=True),
    "projector": Replacement(forward=merge_patches, is_site=False, independent=True),
    "image tokens": Replacement(arguments=with_image_features, is_site=False, independent=True),
}
