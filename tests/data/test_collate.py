"""Samples -> batches: padding, joining, positions, masks, and what the trainer reads."""

import numpy as np
import paddle
import pytest
from paddle.io import DataLoader

from llm_npu.data.collate import IGNORED, Collator
from paddle_fused import flash_attention, masks

pytestmark = pytest.mark.sampled

ONE = {"input_ids": [5, 6, 7], "labels": [6, 7, IGNORED]}
TWO = {"input_ids": [8, 9], "labels": [9, IGNORED]}
PACKED = {"input_ids": [1, 2, 3, 4, 5], "labels": [2, IGNORED, 4, 5, IGNORED], "seqlens": [2, 3]}


def lists(batch):
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def test_without_padding_the_samples_are_one_row():
    assert lists(Collator("none")([ONE, TWO, PACKED])) == {
        "input_ids": [[5, 6, 7, 8, 9, 1, 2, 3, 4, 5]],
        "labels": [[6, 7, IGNORED, 9, IGNORED, 2, IGNORED, 4, 5, IGNORED]],
        "position_ids": [[0, 1, 2, 0, 1, 0, 1, 0, 1, 2]],
        "attention_mask": masks.documents([[3, 2, 2, 3]]),
    }


def test_padding_to_the_longest_is_a_document_of_its_own():
    assert lists(Collator("longest", pad_token_id=99)([ONE, TWO, PACKED])) == {
        "input_ids": [[5, 6, 7, 99, 99], [8, 9, 99, 99, 99], [1, 2, 3, 4, 5]],
        "labels": [
            [6, 7, IGNORED, IGNORED, IGNORED],
            [9, IGNORED, IGNORED, IGNORED, IGNORED],
            [2, IGNORED, 4, 5, IGNORED],
        ],
        "position_ids": [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2], [0, 1, 0, 1, 2]],
        "attention_mask": masks.documents([[3, 2], [2, 3], [2, 3]]),
    }


def test_padding_to_a_fixed_length():
    batch = Collator("max_length", length=6)([ONE, PACKED])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0, 0, 0], [1, 2, 3, 4, 5, 0]]
    assert batch["attention_mask"] == masks.documents([[3, 3], [2, 3, 1]])
    with pytest.raises(ValueError, match=r"5 tokens, .* 4"):
        Collator("max_length", length=4)([ONE, PACKED])


@pytest.mark.parametrize("collate", [Collator("longest"), Collator("max_length", length=3)])
def test_full_rows_of_one_document_need_no_mask(collate):
    assert set(collate([ONE, ONE])) == {"input_ids", "labels"}
    assert set(Collator("none")([ONE])) == {"input_ids", "labels"}


@pytest.mark.parametrize("padding", ["none", "longest"])
def test_the_dense_mask_is_the_object_written_out_with_true_for_seen(padding):
    samples = [ONE, TWO, PACKED]
    object_, dense = (Collator(padding, mask=mask)(samples)["attention_mask"] for mask in ("object", "dense"))
    rows, width = Collator(padding)(samples)["input_ids"].shape
    assert (dense.dtype, dense.shape) == (bool, (rows, 1, width, width))
    np.testing.assert_array_equal(dense, ~object_.to_dense(width))


def test_cumulative_lengths_for_layout_tnd():
    ends = Collator("none", cu_seqlens=True)([ONE, PACKED])["cu_seqlens"]
    assert (ends.dtype, ends.tolist()) == (np.int32, [0, 3, 5, 8])
    assert Collator("longest", cu_seqlens=True)([ONE, PACKED])["cu_seqlens"].tolist() == [0, 3, 5, 7, 10]
    assert Collator("none", cu_seqlens=True)([ONE])["cu_seqlens"].tolist() == [0, 3]


def test_what_the_trainer_reads():
    batch = Collator("longest")([ONE | {"loss_weight": 0.5}, PACKED | {"loss_weight": 1.0}])
    assert (batch["loss_weight"], batch["num_tokens"]) == (1.5, 8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_ids": [], "labels": []},
        {"input_ids": [1, 2], "labels": [2]},
        {"input_ids": [1, 2], "labels": [2, 3], "seqlens": [1]},
        {"input_ids": [1, 2], "labels": [2, 3], "seqlens": [2, 0]},
    ],
)
def test_samples_that_contradict_themselves_are_refused(wrong):
    with pytest.raises(ValueError, match=rf"sample 1 has {len(wrong['input_ids'])} input_ids"):
        Collator("longest")([ONE, wrong])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"padding": "left"}, "padding is 'left'; accepted: none, longest, max_length"),
        ({"mask": "float"}, "mask is 'float'; accepted: object, dense"),
        ({"padding": "max_length"}, "length is None and padding 'max_length'"),
        ({"padding": "none", "length": 8}, "length is 8 and padding 'none'"),
    ],
)
def test_unknown_words_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Collator(**arguments)


def test_paddles_loader_keeps_the_mask_object():
    (batch,) = DataLoader([ONE, TWO], batch_size=2, collate_fn=Collator("none"), num_workers=0)
    assert batch["attention_mask"] == masks.documents([[3, 2]])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert str(batch["position_ids"].dtype) == "paddle.int64"


def test_attention_in_layout_tnd_is_that_of_the_mask():
    batch = Collator("none", cu_seqlens=True)([ONE, TWO, PACKED])
    tokens, heads, size = batch["input_ids"].shape[1], 2, 16
    paddle.seed(0)
    query, key, value = (paddle.randn([1, tokens, heads, size]) for _ in range(3))
    masked = flash_attention(query, key, value, batch["attention_mask"])
    ends = batch["cu_seqlens"]
    packed = flash_attention(
        *(inputs_of[0] for inputs_of in (query, key, value)),
        masks.causal(),
        layout="TND",
        cu_seqlens_q=ends,
        cu_seqlens_k=ends,
    )
    assert packed.numpy().tobytes() == masked[0].numpy().tobytes()
