"""Vision-language models of PaddleFormers at tiny size, and batches of text with images of two sizes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import paddle

from fused_models.comparison import IGNORED, Batch
from fused_models.formers import GROUPED_HEADS, SIZES, UNFUSED
from fused_models.weights import VOCABULARY, fill, in_bfloat16
from llm_npu import patches
from llm_npu.models.paddleformers.vision_language import FAMILIES as RECORDS

FIRST_SPECIAL = VOCABULARY - 4
IMAGE, VIDEO, START, END = range(FIRST_SPECIAL, VOCABULARY)
MERGED = 2  # patches in each direction that become one token
GRIDS = np.array([[1, 4, 8], [1, 6, 8]])  # time, height and width of each image, in patches
PATCHES = tuple(GRIDS.prod(1).tolist())
LENGTH = 24  # tokens of a document, which has one image
BEFORE = 3  # tokens before the image
UNLABELLED = LENGTH - 8
MROPE = {"mrope_section": [8, 12, 12], "rope_type": "default", "type": "default"}


@dataclass(frozen=True, eq=False)  # so that it is a key of caches
class VisionFamily:
    """A row of tests, as ``fused_models.formers.Family``.

    Attributes:
        prefix: that of its configuration's class and, with ForConditionalGeneration, of its model's.
        text, vision: fields of the configurations.
        patch: shape of a patch of pixels.
        nested: whether the fields of text have a configuration of their own.
    """

    model_type: str
    prefix: str
    text: Mapping[str, object]
    vision: Mapping[str, object]
    patch: tuple[int, ...]
    nested: bool = False

    criterion = None  # its forward returns the loss

    @property
    def name(self) -> str:
        return self.model_type

    @property
    def title(self) -> str:
        """Its row in the table of docs/fusing.md."""
        return RECORDS[self.model_type].title

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(RECORDS[self.model_type].layers)

    @property
    def truth(self) -> VisionFamily:
        """The family whose model computes the same function and runs in float64."""
        return self

    def __str__(self) -> str:
        return self.name

    def plain(self, model) -> None:
        """Its unfused model runs everywhere."""

    def configuration(self):
        text = {**SIZES, **self.text}
        return _class(self, "configuration", "Config")(
            **({"text_config": text, "tie_word_embeddings": False} if self.nested else text),
            vision_config=dict(self.vision),
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            vision_start_token_id=START,
        )

    def with_grouped_heads(self) -> VisionFamily:
        """The family with two heads of keys, which two ranks can share."""
        size = 64 * GROUPED_HEADS["num_attention_heads"]
        text = {**self.text, **GROUPED_HEADS, "hidden_size": size}
        vision = {**self.vision, **({"out_hidden_size": size} if self.nested else {})}
        return replace(self, text=text, vision=vision)

    def build(self, dtype: str = "float32", split: Mapping[str, object] | None = None, **attributes):
        """The model on the current device, in evaluation mode.

        Args:
            split: attributes of its configurations that the trainer does not set for the vision tower.
            attributes: those of all its configurations.
        """
        config = self.configuration()
        parts = [config, *([config.text_config] if self.nested else [])]
        for part in (*parts, config.vision_config):
            for name, value in {**UNFUSED, **attributes}.items():
                setattr(part, name, value)
        for part in parts:
            for name, value in (split or {}).items():
                setattr(part, name, value)
        # Not model.to(dtype), which rounds the frequencies of the rotary embedding, too.
        before = paddle.get_default_dtype()
        paddle.set_default_dtype(dtype)
        try:
            model = _class(self, "modeling", "ForConditionalGeneration")(config)
        finally:
            paddle.set_default_dtype(before)
        fill(model)
        model.eval()
        return model


def _class(family: VisionFamily, module: str, suffix: str) -> type:
    patches.apply()  # also Paddle's, for the gradient of assigned image features
    classes = importlib.import_module(f"paddleformers.transformers.{family.model_type}.{module}")
    return getattr(classes, family.prefix + suffix)


FAMILIES = (
    VisionFamily(
        "paddleocr_vl",
        "PaddleOCRVL",
        text={"head_dim": 64, "rope_scaling": MROPE},
        vision={
            "hidden_size": 144,  # a head size of 72, as in the published model
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 56,
            "patch_size": 14,
            "spatial_merge_size": MERGED,
            "temporal_patch_size": 1,
        },
        patch=(3, 14, 14),
    ),
    VisionFamily(
        "qwen2_5_vl",
        "Qwen2_5_VL",
        text={"rope_scaling": MROPE, "use_sliding_window": False},
        vision={
            "hidden_size": 160,  # a head size of 80, as in the published models
            "intermediate_size": 192,
            "depth": 2,
            "num_heads": 2,
            "patch_size": 14,
            "spatial_merge_size": MERGED,
            "temporal_patch_size": 2,
            "window_size": 56,  # four patches: windows at the end of an image are smaller
            "fullatt_block_indexes": [1],
            "out_hidden_size": SIZES["hidden_size"],
        },
        patch=(3 * 2 * 14 * 14,),
        nested=True,
    ),
    VisionFamily(
        "qwen3_vl",
        "Qwen3VL",
        text={"head_dim": 64, "rope_scaling": MROPE | {"mrope_section": [12, 10, 10]}},
        vision={
            "hidden_size": 144,  # a head size of 72, as in the published models
            "intermediate_size": 192,
            "depth": 2,
            "num_heads": 2,
            "patch_size": 16,
            "spatial_merge_size": MERGED,
            "temporal_patch_size": 2,
            "num_position_embeddings": 36,
            "deepstack_visual_indexes": [0],
            "out_hidden_size": SIZES["hidden_size"],
        },
        patch=(3 * 2 * 16 * 16,),
        nested=True,
    ),
)


@functools.cache
def batch(packed: bool) -> Batch:
    """Documents with one image each: rows of their own, or ``packed`` into one row."""
    random = np.random.default_rng(0)
    rows = []
    for merged in GRIDS.prod(1) // MERGED**2:
        text = random.integers(3, FIRST_SPECIAL, LENGTH).tolist()
        rows.append([*text[:BEFORE], START, *[IMAGE] * merged, END, *text][:LENGTH])
    ids = np.array(rows)
    labels = np.concatenate([ids[:, 1:], ids[:, :1]], axis=1)
    labels[:, : LENGTH - UNLABELLED] = IGNORED
    return Batch(*(part.reshape([1, -1]) for part in (ids, labels))) if packed else Batch(ids, labels)


def inputs(family: VisionFamily, packed: bool, place=None) -> dict[str, paddle.Tensor]:
    """What a model takes beside tokens and labels, as its library's collator makes it."""
    random = np.random.default_rng(1)
    pixels = in_bfloat16(random.standard_normal((sum(PATCHES), *family.patch), np.float32))
    positions = np.stack([_positions(grid) for grid in GRIDS], axis=1)  # [3, B, S]
    arrays = {"pixel_values": pixels, "image_grid_thw": GRIDS, "position_ids": positions}
    if packed:
        arrays["position_ids"] = positions.reshape([3, 1, -1])
        ends = np.repeat(np.arange(1, len(GRIDS) + 1) * LENGTH, LENGTH)
        arrays["attn_mask_startend_row_indices"] = ends.astype(np.int32).reshape([1, 1, -1, 1])
    return {name: paddle.to_tensor(array, place=place) for name, array in arrays.items()}


def _positions(grid) -> np.ndarray:
    """[3, S] on the axes time, height and width: equal for text, and the place in the grid for an image."""
    image = np.indices(grid // [1, MERGED, MERGED]).reshape([3, -1]) + BEFORE + 1
    before = np.tile(np.arange(BEFORE + 1), [3, 1])
    after = np.tile(np.arange(LENGTH - image.shape[1] - BEFORE - 1), [3, 1]) + image.max() + 1
    return np.concatenate([before, image, after], axis=1)
