"""From text and .bin + .idx to samples: packing, splitting and order."""

import json

import numpy as np
import pytest

from llm_npu.config import DataArguments
from llm_npu.data.indexed import IndexedTokens, write_indexed
from llm_npu.data.packing import DocumentPieces, PackedSamples, TokenStream
from llm_npu.data.pipeline import (
    Datasets,
    FirstSamples,
    ShuffledSamples,
    boundaries,
    documents,
    find,
    load,
    permutation,
)
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer

pytestmark = pytest.mark.sampled

EOS = 2
SENTENCES = "One two three. Grüße aus Köln — 你好 🙂.\n"


def stream_of(*pieces, eos=EOS):
    tokens = np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])
    return TokenStream(IndexedTokens("memory", tokens, np.cumsum([len(piece) for piece in pieces])), eos)


def samples_of(*pieces, length=2, vocab_size=100):
    stream = stream_of(*pieces)
    return PackedSamples(stream, 0, len(stream), length, vocab_size)


# where the tokens are


def test_bin_and_idx_are_found_by_prefix_file_and_folder(tmp_path):
    prefix = tmp_path / "v1.5"
    write_indexed(prefix, [np.array([1, EOS])], 100)
    for name in (prefix, tmp_path / "v1.5.bin", tmp_path / "v1.5.idx", tmp_path):
        assert find(DataArguments(input_dir=str(name))) == prefix
    write_indexed(tmp_path / "second", [np.array([1, EOS])], 100)
    with pytest.raises(ValueError, match=r"contains 2 \.idx files"):
        find(DataArguments(input_dir=str(tmp_path)))


# packing


def test_documents_are_joined_with_one_end_of_text_token_each():
    stream = stream_of([5, 6], [7], [EOS], [], [8, EOS], [9])
    expected = [5, 6, EOS, 7, EOS, EOS, 8, EOS, 9, EOS]
    assert len(stream) == len(expected)
    assert stream.ends.tolist() == [3, 5, 6, 8, 10]
    for start in range(len(expected) + 1):
        for stop in range(start, len(expected) + 1):
            assert stream.read(start, stop).tolist() == expected[start:stop]


def test_labels_are_the_next_tokens_and_no_input_is_used_twice():
    samples = samples_of([5, 6, 7, 8], [9], [10, 11, 12])
    assert len(samples) == 5  # 11 tokens: 5 x 2 inputs and one token for the last label
    assert [samples[i]["input_ids"].tolist() for i in range(5)] == [
        [5, 6],
        [7, 8],
        [EOS, 9],
        [EOS, 10],
        [11, 12],
    ]
    assert [samples[i]["labels"].tolist() for i in range(5)] == [
        [6, 7],
        [8, EOS],
        [9, EOS],
        [10, 11],
        [12, EOS],
    ]
    assert {array.dtype.name for array in samples[0].values()} == {"int64"}
    for outside in (5, -1):
        with pytest.raises(IndexError):
            samples[outside]


def test_samples_without_a_label_are_left_out():
    """With documents apart the last token of each has no label: a document of one token has none at all."""
    stream = stream_of([EOS], [EOS], [5, 6, EOS], [EOS], [EOS], [EOS], [7])
    apart = PackedSamples(stream, 0, len(stream), 2, 100, separate_documents=True)
    assert (len(apart), apart.dropped, apart.labelled(0)) == (1, 3, 2)
    assert (apart[0]["input_ids"].tolist(), apart[0]["labels"].tolist()) == ([5, 6], [6, EOS])
    none = PackedSamples(stream_of(*[[EOS]] * 9), 0, 9, 2, 100, separate_documents=True)
    assert (len(none), none.dropped) == (0, 4)


class Unlabelled:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"input_ids": np.ones(2, np.int64), "labels": np.full(2, -100)}

    def labelled(self, index):
        return 0


def test_a_step_without_labels_is_one_sentence():
    with pytest.raises(ValueError, match="step 2 has no label"):
        ShuffledSamples(Unlabelled(), 8, seed=1, per_step=2)[3]
    with pytest.raises(ValueError, match="the evaluation has no label"):
        FirstSamples(Unlabelled(), 3)


@pytest.mark.parametrize(
    ("tokens", "length", "count"), [(2, 2, 0), (3, 2, 1), (4, 2, 1), (5, 2, 2), (2, 1, 1)]
)
def test_a_sample_needs_one_token_more_than_its_length(tokens, length, count):
    assert len(samples_of([5] * (tokens - 1), length=length)) == count


@pytest.mark.parametrize("wrong", [100, 40000, -1])
def test_ids_outside_the_vocabulary_are_refused(wrong):
    samples = samples_of([5, 6, 7], [wrong, 8], length=2)
    samples[0]
    with pytest.raises(ValueError, match=f"token id {wrong}, .* 0 to 99"):
        samples[1]


# order


def test_every_epoch_shows_each_sample_once_in_another_order():
    samples = samples_of(list(range(3, 24)))
    count = len(samples)
    shuffled = ShuffledSamples(samples, 3 * count, seed=7)
    epochs = [[int(shuffled[e * count + i]["input_ids"][0]) for i in range(count)] for e in range(3)]
    expected = sorted(int(samples[i]["input_ids"][0]) for i in range(count))
    assert all(sorted(epoch) == expected for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_is_a_pure_function_of_seed_and_position():
    samples = samples_of(list(range(3, 90)))
    straight = ShuffledSamples(samples, 200, seed=1)
    seen = [straight[i]["input_ids"].tolist() for i in range(200)]
    resumed = ShuffledSamples(samples, 200, seed=1)
    assert [resumed[i]["input_ids"].tolist() for i in range(137, 200)] == seen[137:]
    assert [resumed[i]["input_ids"].tolist() for i in (199, 3, 60)] == [seen[199], seen[3], seen[60]]
    other = ShuffledSamples(samples, 200, seed=2)
    assert [other[i]["input_ids"].tolist() for i in range(200)] != seen
    # Written down, so that a new numpy cannot reorder the data of a run that is to be continued.
    assert permutation(42, 0, 10).tolist() == [5, 6, 0, 7, 3, 2, 4, 9, 1, 8]
    assert permutation(42, 1, 10).tolist() == [0, 8, 7, 4, 3, 1, 2, 9, 6, 5]


@pytest.mark.paddlenlp
def test_paddlenlps_sampler_resumes_at_the_consumed_samples():
    from paddlenlp.utils.batch_sampler import DistributedBatchSampler

    train = ShuffledSamples(samples_of(list(range(3, 90))), 60, seed=3)

    def batches(consumed):
        sampler = DistributedBatchSampler(
            train, batch_size=4, shuffle=False, num_replicas=1, rank=0, drop_last=True
        )
        sampler.set_epoch(0, consumed_samples=consumed)
        return [np.stack([train[i]["input_ids"] for i in batch]).tolist() for batch in sampler]

    assert batches(24) == batches(0)[6:]


def test_nothing_to_shuffle_is_refused():
    with pytest.raises(ValueError, match="no sample"):
        ShuffledSamples(samples_of([5]), 10, seed=0)
    with pytest.raises(IndexError):
        ShuffledSamples(samples_of([5, 6, 7, 8]), 10, seed=0)[10]


# split


def cut(sizes, split, length=1, needed=(True, True, False)):
    return boundaries(np.cumsum(sizes), split, length, needed, "text")


def test_whole_documents_are_given_to_the_parts_by_weight():
    assert cut([10] * 1000, "949,50,1") == [0, 9490, 9990, 10000]
    assert cut([10] * 10, "8,1,1") == [0, 80, 90, 100]
    assert cut([10] * 10, "1", needed=(True, False, False)) == [0, 100, 100, 100]


def test_too_few_documents_are_cut_by_tokens():
    assert cut([1000], "949,50,1", length=10) == [0, 949, 999, 1000]
    assert cut([500, 500], "8,1,1", length=10, needed=(True, True, True)) == [0, 800, 900, 1000]
    assert cut([1000], "949,50,1", length=10, needed=(True, False, False)) == [0, 1000, 1000, 1000]
    assert cut([1000] * 3, "1,500,500")[0] == 0  # PaddleNLP's rounding goes below 0 here


@pytest.mark.parametrize(
    ("sizes", "split", "needed", "words"),
    [
        ([5], "949,50,1", (True, False, False), "training split of text has 5 of 5 tokens"),
        ([100], "949,50,1", (True, True, False), r"validation split .* has 5 of 100 .*or --do_eval false"),
        ([1000] * 9, "1,0,0", (True, True, False), "validation split of text has 0 of 9000"),
        ([1000], "949,50,1", (True, False, True), "test split of text has 1 of 1000"),
    ],
)
def test_parts_smaller_than_one_sample_are_refused(sizes, split, needed, words):
    with pytest.raises(ValueError, match=words):
        cut(sizes, split, length=10, needed=needed)


# all together


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(SENTENCES * (number % 5 + 1) + str(number), encoding="utf-8")
    return folder


def test_text_is_trained_on_whole_and_held_out_text_is_not(texts, tmp_path):
    data = DataArguments(
        input_dir=str(texts), split="8,1,1", max_seq_length=8, data_cache=str(tmp_path / "cache")
    )
    source = find(data)
    tokenizer = load_tokenizer(trained_tokenizer(source, 300, data.data_cache))
    parts = load(data, source, tokenizer, 300, need_test=True)
    assert isinstance(parts, Datasets)
    texts_of_parts = []
    for part in (parts.train, parts.valid, parts.test):
        ids = np.concatenate([part[i]["input_ids"] for i in range(len(part))])
        assert part.tokens - len(ids) <= 8  # at most the last, incomplete sample is left over
        texts_of_parts.append(tokenizer.decode(ids.tolist()).split("<|end_of_text|>"))
    whole = list(source.documents())
    assert texts_of_parts[0][:-1] == whole[: len(texts_of_parts[0]) - 1]
    assert texts_of_parts[1][0] == whole[32]
    assert texts_of_parts[2][0] == whole[36]


def test_tokenised_text_is_cached_until_the_text_or_the_tokenizer_changes(texts, tmp_path):
    cache = tmp_path / "cache"
    data = DataArguments(input_dir=str(texts), split="8,2", max_seq_length=8, data_cache=str(cache))

    def folders(vocab_size):
        source = find(data)
        tokenizer = load_tokenizer(trained_tokenizer(source, vocab_size, data.data_cache))
        load(data, source, tokenizer, vocab_size)
        return len(list(cache.glob("tokens-*")))

    assert [folders(300), folders(300), folders(301)] == [1, 1, 2]
    (texts / "0.txt").write_text("changed", encoding="utf-8")
    assert folders(300) == 3


def test_a_pair_made_with_another_tokenizer_is_refused(texts, tmp_path):
    tokenizer = load_tokenizer(trained_tokenizer(corpus(texts), 300, str(tmp_path / "cache")))
    write_indexed(tmp_path / "p", documents(corpus(texts), tokenizer), len(tokenizer))
    data = DataArguments(input_dir=str(tmp_path / "p"), split="8,2", max_seq_length=8)
    assert len(load(data, find(data), tokenizer, 300).train)
    with pytest.raises(ValueError, match="another tokenizer"):
        load(data, find(data), tokenizer, 200)


def test_empty_text_is_refused_and_leaves_nothing_in_the_cache(texts, tmp_path):
    tokenizer = load_tokenizer(trained_tokenizer(corpus(texts), 300, str(tmp_path / "cache")))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.jsonl").write_text(json.dumps({"text": ""}) + "\n")
    data = DataArguments(input_dir=str(tmp_path / "empty"), data_cache=str(tmp_path / "second"))
    with pytest.raises(ValueError, match="empty: there is no text"):
        load(data, find(data), tokenizer, 300)
    assert list((tmp_path / "second").iterdir()) == []


# documents that see nothing of each other


def apart(*pieces, length=4):
    stream = stream_of(*pieces)
    return PackedSamples(stream, 0, len(stream), length, 100, separate_documents=True)


def test_documents_of_a_sample_are_told_apart():
    samples = apart([5, 6, 7, 8, 9], [10], [11, 12, 13, 14, 15, 16])
    assert [{name: array.tolist() for name, array in samples[i].items()} for i in range(3)] == [
        {"input_ids": [5, 6, 7, 8], "labels": [6, 7, 8, 9], "seqlens": [4]},
        {"input_ids": [9, EOS, 10, EOS], "labels": [EOS, -100, EOS, -100], "seqlens": [2, 2]},
        {"input_ids": [11, 12, 13, 14], "labels": [12, 13, 14, 15], "seqlens": [4]},
    ]
    assert [samples.labelled(i) for i in range(3)] == [4, 2, 4]


def test_no_label_of_a_sample_is_another_documents_token():
    draw = np.random.default_rng(0)
    documents = [draw.integers(10 * i, 10 * i + 10, draw.integers(1, 9)) for i in range(1, 10)]
    samples = apart(*documents, length=7)
    for number in range(len(samples)):
        sample = samples[number]
        assert sum(sample["seqlens"]) == 7 and samples.labelled(number) == (sample["labels"] >= 0).sum()
        start = 0
        for length in sample["seqlens"]:
            tokens, labels = (sample[name][start : start + length] for name in ("input_ids", "labels"))
            of = {int(token) // 10 for token in [*tokens, *labels] if token not in (EOS, -100)}
            assert len(of) <= 1 and (labels[:-1] == tokens[1:]).all()
            start += length


def test_whole_documents_are_cut_only_where_they_are_too_long():
    stream = stream_of([5, 6], list(range(10, 19)), [7], [EOS])
    pieces = DocumentPieces(stream, 0, len(stream), 4, 100)
    assert [tuple(piece.tolist() for piece in pieces.read(i)) for i in range(len(pieces.lengths))] == [
        ([5, 6, EOS], [6, EOS, -100]),
        ([10, 11, 12, 13], [11, 12, 13, 14]),
        ([14, 15, 16, 17], [15, 16, 17, 18]),
        ([18, EOS], [EOS, -100]),
        ([7, EOS], [EOS, -100]),
    ]  # the last document has no token to predict
    assert pieces.lengths.tolist() == [3, 4, 4, 2, 2]
    assert pieces.labelled.tolist() == [2, 4, 4, 1, 1]
    part = DocumentPieces(stream, 1, 6, 4, 100)  # both ends inside of documents
    assert [part.read(i)[0].tolist() for i in range(len(part.lengths))] == [[6, EOS], [10, 11, 12]]
    assert part.read(1)[1].tolist() == [11, 12, -100]
    with pytest.raises(ValueError, match="token id 18, but"):
        DocumentPieces(stream, 0, len(stream), 4, 18).read(2)


# weights


def test_every_label_of_a_step_counts_as_much():
    rows = apart([5] * 6, [6, 7], [8], [9] * 20, length=4)
    drawn = ShuffledSamples(rows, 24, seed=3, per_step=6)
    for step in range(4):
        weights = [drawn[i]["loss_weight"] for i in range(6 * step, 6 * step + 6)]
        labels = [(drawn[i]["labels"] >= 0).sum() for i in range(6 * step, 6 * step + 6)]
        np.testing.assert_allclose(weights, np.array(labels) / np.mean(labels))
    again = ShuffledSamples(rows, 24, seed=3, per_step=6)
    assert [again[i]["loss_weight"] for i in (23, 1)] == [drawn[i]["loss_weight"] for i in (23, 1)]


def test_samples_with_as_many_labels_count_one():
    drawn = ShuffledSamples(samples_of(list(range(3, 90))), 60, seed=3, per_step=7)
    assert {drawn[i]["loss_weight"] for i in range(60)} == {1.0}


def test_the_first_samples_are_weighted_among_themselves():
    rows = apart([5] * 6, [6, 7], [8], [9] * 20, length=4)
    first = FirstSamples(rows, 3)
    labels = [rows.labelled(i) for i in range(3)]
    assert [first[i]["loss_weight"] for i in range(3)] == [n / (sum(labels) / 3) for n in labels]
    assert len(FirstSamples(rows, 1000)) == len(rows)
    with pytest.raises(IndexError):
        first[3]


@pytest.mark.parametrize("packing", ["first_fit", "length_grouped", "none"])
def test_packed_text_is_every_document_once(texts, tmp_path, packing):
    data = DataArguments(
        input_dir=str(texts), split="8,1,1", max_seq_length=64, data_cache=str(tmp_path), packing=packing
    )
    source = find(data)
    tokenizer = load_tokenizer(trained_tokenizer(source, 300, data.data_cache))
    parts = load(data, source, tokenizer, 300)
    pieces_of_samples = []
    for number in range(len(parts.train)):
        sample = parts.train[number]
        assert len(sample["input_ids"]) <= 64
        assert parts.train.labelled(number) == (sample["labels"] >= 0).sum()
        pieces_of_samples += np.split(sample["input_ids"], np.cumsum(sample["seqlens"])[:-1])
    whole = [ids for text in list(source.documents())[:32] for ids in [tokenizer(text)["input_ids"] + [2]]]
    cut = [ids[start : start + 64] for ids in whole for start in range(0, len(ids), 64)]
    assert sorted(document.tolist() for document in pieces_of_samples) == sorted(cut)
    assert packing == "none" or len(parts.train) < len(pieces_of_samples)
    assert (
        f"{len(pieces_of_samples)} documents and pieces of documents packed into {len(parts.train)} samples"
        in parts.notes[0]
    )
