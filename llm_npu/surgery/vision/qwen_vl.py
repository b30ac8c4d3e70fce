"""Qwen2.5-VL and Qwen3-VL: forwards of their vision towers without host fallbacks on a card.

Upstream computes the same, with operators that a card's plugin lacks for these dtypes: conv3d,
repeat_interleave, unique_consecutive, masked_select and indexing by tensors, and positions in float64. It
reads the sizes of the images about 50 times.

Legend: P patches of all images, M tokens that they are merged into, H hidden size of the tower, D head size.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import paddle

from llm_npu.surgery import attention_interface, multimodal_rotary
from llm_npu.surgery.fusable_layers import FusableLayer
from llm_npu.surgery.registry import Replacement

from . import grids, image_tokens

DEEPSTACK = "deepstack"  # the argument in which a model passes features of images to its decoder


def with_image_features(model, arguments: dict) -> dict:
    """The model's arguments with token and image embeddings in place of pixels.

    Videos are left to upstream.
    """
    pixels, tokens = arguments.get("pixel_values"), arguments.get("input_ids")
    others = arguments.get("pixel_values_videos"), arguments.get("inputs_embeds")
    if pixels is None or tokens is None or any(other is not None for other in others):
        return arguments
    features = model.visual(pixels, grid_thw=arguments["image_grid_thw"])
    features, *deepstack = features if isinstance(features, tuple) else (features,)
    is_image = tokens == model.config.image_token_id
    places = image_tokens.places(is_image, features)
    embeddings = image_tokens.put(model.get_input_embeddings()(tokens), places, features)
    arguments = {**arguments, "pixel_values": None, "inputs_embeds": embeddings}
    if deepstack:
        # With sequence parallelism, upstream selects the features of a process's tokens by the mask.
        selected = is_image if model.config.text_config.sequence_parallel else places
        arguments[DEEPSTACK] = selected, *deepstack
    return arguments


def with_deepstack(decoder, arguments: dict) -> dict:
    """The arguments of Qwen3-VL's decoder, with the features that ``with_image_features`` passes."""
    if DEEPSTACK in arguments:
        arguments["visual_pos_masks"], arguments["deepstack_visual_embeds"] = arguments.pop(DEEPSTACK)
    return arguments


def add_features(self, hidden_states, visual_pos_masks, visual_embeds):
    """Replaces ``_deepstack_process``: adds features to the hidden states of image tokens.

    Args:
        hidden_states: [B, S, H].
        visual_pos_masks: int64, the places of image tokens among all tokens; or upstream's mask.
    """
    if visual_pos_masks.dtype == paddle.bool:
        return type(self)._deepstack_process(self, hidden_states, visual_pos_masks, visual_embeds)
    return image_tokens.put(hidden_states, visual_pos_masks, visual_embeds, accumulate=True)


def embed_patches(self, hidden_states):
    """The forward of a patch embedding, whose convolution covers each patch once: pixels [P, C] -> [P, H]."""
    weight, bias = self.proj.weight, self.proj.bias
    pixels = hidden_states.reshape([-1, int(np.prod(weight.shape[1:]))]).astype(weight.dtype)
    out = paddle.matmul(pixels, weight.reshape([weight.shape[0], -1]), transpose_y=True)
    return out if bias is None else out + bias


def encode_windows(self, hidden_states, grid_thw):
    """The forward of Qwen2.5-VL's tower: pixels -> [M, H of the text]."""
    sizes, unit = grids.on_host(grid_thw), self.spatial_merge_unit
    order, lengths = window_order(sizes // [1, self.spatial_merge_size, self.spatial_merge_size], _side(self))
    hidden_states = self.patch_embed(hidden_states)
    shape = hidden_states.shape
    blocks = hidden_states.reshape([-1, unit * shape[-1]])
    hidden_states = paddle.gather(blocks, paddle.to_tensor(order)).reshape(shape)
    places = _places(self, sizes).reshape([-1, unit, 2])[order].reshape([-1, 2])
    tables = _rotary_tables(self, places)
    windows, images = _ends(lengths * unit), _ends(_lengths_of_frames(sizes))
    for number, block in enumerate(self.blocks):
        ends = images if number in self.fullatt_block_indexes else windows
        hidden_states = _run(self, block, hidden_states, cu_seqlens=ends, position_embeddings=tables)
    return paddle.gather(self.merger(hidden_states), paddle.to_tensor(np.argsort(order)))


def _side(tower) -> int:
    """The number of tokens in each direction of a window."""
    return tower.window_size // tower.spatial_merge_size // tower.patch_size


def window_order(sizes: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """The order of the tokens [M] by windows of ``side`` x ``side``, and the number of tokens in each window.

    Args:
        sizes: [images, 3], in tokens. Windows at the end of a row or column are smaller.
    """
    order, lengths, start = [], [], 0
    for frames, height, width in sizes.tolist():
        indices = np.arange(start, start + frames * height * width).reshape([frames, height, width])
        windows = [
            frame[row : row + side, column : column + side].ravel()
            for frame in indices
            for row in range(0, height, side)
            for column in range(0, width, side)
        ]
        order += windows
        lengths += map(len, windows)
        start += indices.size
    return np.concatenate(order), np.array(lengths)


def encode_grid(self, hidden_states, grid_thw):
    """The forward of Qwen3-VL's tower: pixels -> [M, H of the text], and the deepstack features."""
    sizes = grids.on_host(grid_thw)
    hidden_states = self.patch_embed(hidden_states) + interpolated_positions(self, sizes)
    lengths = _lengths_of_frames(sizes)
    inputs = {
        "cu_seqlens": _ends(lengths),
        "position_embeddings": _rotary_tables(self, _places(self, sizes)),
        "attn_mask_startend_row_indices": _rows_of_documents(lengths),
    }
    features = []
    for number, block in enumerate(self.blocks):
        hidden_states = _run(self, block, hidden_states, **inputs)
        if number in self.deepstack_visual_indexes:
            merger = self.deepstack_merger_list[self.deepstack_visual_indexes.index(number)]
            features.append(merger(hidden_states))
    return self.merger(hidden_states), features


def interpolated_positions(tower, sizes: np.ndarray):
    """[P, H]: the learned positions, bilinear between the four neighbors in a grid of another size."""
    indices, weights = zip(*(_neighbors(*size[1:], tower.num_grid_per_side) for size in sizes), strict=True)
    frames = [np.tile(np.arange(len(part[0])), size[0]) for part, size in zip(indices, sizes, strict=True)]
    indices, weights = (
        np.concatenate([part[:, frame] for part, frame in zip(parts, frames, strict=True)], axis=1)
        for parts in (indices, weights)
    )
    order = grids.blocks(sizes, tower.spatial_merge_size, tower.spatial_merge_size)
    table = tower.pos_embed.weight
    corners = tower.pos_embed(paddle.to_tensor(indices[:, order]))  # [4, P, H]
    weights = paddle.to_tensor(weights[:, order].astype(np.float32)).astype(table.dtype)
    products = corners * weights.unsqueeze(-1)
    return products[0] + products[1] + products[2] + products[3]


def _neighbors(height: int, width: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices int64 and weights [4, height * width] of the neighbors in a grid of ``side`` x ``side``."""
    indices, weights = [], []
    lines = [np.linspace(0, side - 1, count) for count in (height, width)]
    floors = [line.astype(np.int64) for line in lines]
    ceilings = [np.minimum(floor + 1, side - 1) for floor in floors]
    fractions = [line - floor for line, floor in zip(lines, floors, strict=True)]
    for rows, row_weights in ((floors[0], 1 - fractions[0]), (ceilings[0], fractions[0])):
        for columns, column_weights in ((floors[1], 1 - fractions[1]), (ceilings[1], fractions[1])):
            indices.append(np.add.outer(rows * side, columns).ravel())
            weights.append(np.multiply.outer(row_weights, column_weights).ravel())
    return np.stack(indices), np.stack(weights)


def _rotary_tables(tower, places: np.ndarray) -> tuple:
    """cos and sin [P, D], with equal halves."""
    tables = multimodal_rotary.tables_of_patches(tower.rotary_pos_emb, places)
    return tuple(paddle.concat([table, table], axis=-1) for table in tables)


def _places(tower, sizes: np.ndarray) -> np.ndarray:
    """[P, 2]: row and column of each patch, in the order of the pixels: by blocks that are merged."""
    return grids.rows_and_columns(sizes)[grids.blocks(sizes, *[tower.spatial_merge_size] * 2)]


def _lengths_of_frames(sizes: np.ndarray) -> np.ndarray:
    return np.repeat(sizes[:, 1] * sizes[:, 2], sizes[:, 0])


def _ends(lengths: Sequence[int]):
    """Cumulative lengths, int32 on the CPU place: attention reads them without waiting for the device."""
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    return paddle.to_tensor(ends, place=paddle.CPUPlace())


def _rows_of_documents(lengths: np.ndarray):
    """Row indices [1, 1, P, 4] of documents that do not see each other, for attention that is not fused."""
    ends = np.cumsum(lengths)
    columns = [ends, np.full_like(ends, ends[-1]), np.zeros_like(ends), ends - lengths]
    rows = np.repeat(np.stack(columns, axis=1), lengths, axis=0)
    return paddle.to_tensor(rows.astype(np.int32)).unsqueeze([0, 1])


def _run(tower, block, hidden_states, **inputs):
    """The block's output; recomputed under upstream's condition."""
    config = tower.config
    options = config.recompute_granularity, config.recompute_method, config.recompute_num_layers
    if options == ("full", "uniform", 1) and not hidden_states.stop_gradient:
        return tower.recompute_training_full(block, hidden_states, **inputs)
    return block(hidden_states, **inputs)


def decoder(layer, fusable: FusableLayer) -> Replacement | None:
    """Qwen3-VL's decoder, which also makes the masks of its layers."""
    makes_masks = attention_interface.model(layer, fusable)
    if makes_masks is None:
        return None
    attributes = {"_deepstack_process": types.MethodType(add_features, layer)}
    return replace(makes_masks, arguments=with_deepstack, attributes=attributes)


def model(layer, fusable: FusableLayer) -> Replacement:
    """The model with a tower and a decoder; requires the replaced decoder."""
    return Replacement(arguments=with_image_features, is_site=False)


def tower(layer, fusable: FusableLayer) -> Replacement | None:
    """A layer of the vision tower; unchanged if it overrides upstream's forward."""
    if fusable.overridden(layer):
        return None
    return Replacement(forward=FORWARDS[fusable.variant], is_site=False, independent=True)


FORWARDS = {
    "patch products": embed_patches,
    "windows of patches": encode_windows,
    "grid of positions": encode_grid,
}
