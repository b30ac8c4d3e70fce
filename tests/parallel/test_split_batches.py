"""Batches of split sequences: the parts of all ranks are the batch of one process."""

import numpy as np
import pytest
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

from llm_npu import surgery
from llm_npu.data.collate import IGNORED, Collator
from llm_npu.parallel.sequence import Part, SplitCollator, zigzag_shares
from llm_npu.surgery import split_sequence
from paddle_fused import masks
from paddle_fused.context_parallel import zigzag

TEXT = {"input_ids": [1, 2, 3, 4, 5, 6], "labels": [2, 3, 4, 5, 6, 7], "loss_weight": 1.5}
TALK = {
    "input_ids": [8, 9, 1, 2, 3],
    "labels": [IGNORED, 1, IGNORED, IGNORED, 4],
    "seqlens": [2, 3],
    "loss_weight": 0.5,
}


def parts(collate, samples, ranks):
    return [SplitCollator(collate, Part(rank, ranks))(samples) for rank in range(ranks)]


def joined(batches, name):
    return np.concatenate([batch[name] for batch in batches], 1).tolist()


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_parts_are_the_batch(ranks):
    whole = Collator("longest")([TEXT, TALK])
    batches = parts(Collator("longest"), [TEXT, TALK], ranks)
    for name in ("input_ids", "labels", "position_ids"):
        assert joined(batches, name) == whole[name].tolist()
    for batch in batches:
        assert batch["attention_mask"] == whole["attention_mask"] == masks.documents([[6], [2, 3, 1]])
        assert batch["num_tokens"] == 11
        labels = (batch["labels"] != IGNORED).sum()
        assert batch["loss_weight"] == pytest.approx(2.0 * labels / 8)


@pytest.mark.parametrize(("ring", "shares"), [(2, 1), (3, 1), (2, 2)])
def test_parts_in_zigzag_order_are_the_batch(ring, shares):
    length = ring * 2 * shares * 2
    sample = {"input_ids": list(range(length)), "labels": list(range(1, length + 1))}
    collate, order = Collator("longest"), zigzag_shares(ring)
    batches = [
        SplitCollator(collate, Part(rank, ring * shares, order, ring * 2 * shares))([sample])
        for rank in range(ring * shares)
    ]
    for batch in batches:
        positions = batch["position_ids"]
        assert (batch["input_ids"] == positions).all() and (batch["labels"] == positions + 1).all()
    places = [joined(batches[place * shares : (place + 1) * shares], "input_ids")[0] for place in range(ring)]
    assert zigzag.merge([np.array([tokens]) for tokens in places])[0].tolist() == sample["input_ids"]


def test_rows_are_padded_to_equal_parts():
    batches = parts(Collator("none", pad_token_id=99), [TEXT, TALK], 4)
    assert joined(batches, "input_ids") == [[1, 2, 3, 4, 5, 6, 8, 9, 1, 2, 3, 99]]
    assert joined(batches, "position_ids") == [[0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2, 0]]
    assert batches[0]["attention_mask"] == masks.documents([[6, 2, 3, 1]])


def test_rows_of_one_document_share_their_positions():
    batches = parts(Collator("longest"), [TEXT, TEXT], 2)
    assert [batch["position_ids"].tolist() for batch in batches] == [[[0, 1, 2]], [[3, 4, 5]]]
    assert "attention_mask" not in batches[0]


def test_padding_of_an_evaluation_has_no_weight():
    filler = TEXT | {"labels": [IGNORED] * 6, "loss_weight": 0.0}
    assert [batch["loss_weight"] for batch in parts(Collator("longest"), [filler], 2)] == [0, 0]


class Halves:
    """Attention of a sequence on two ranks."""

    ranks = 2

    def operands(self, heads, key_heads, tokens):
        return heads // 2, key_heads // 2, tokens * 2


def test_attention_that_is_not_fused_cannot_be_split():
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1))
    surgery.apply_fused_kernels(model, ["rms_norm"])
    with pytest.raises(ValueError, match="does not use the fused attention"):
        split_sequence.split(model, Halves())
    surgery.apply_fused_kernels(model, ["attention"])
    layer = model.llama.layers[0].self_attn
    assert split_sequence.operands(layer, 2, 2, 8) == (2, 2, 8)
    split_sequence.split(model, Halves())
    assert split_sequence.operands(layer, 2, 2, 8) == (1, 1, 16)
    cos, _ = layer.rotary_emb(model.llama.embed_tokens.weight, seq_len=8)
    assert cos.shape[1] == 16
