""".bin + .idx pairs: written, read back, read by PaddleNLP, and damaged in every way."""

import contextlib
import io
import struct

import numpy as np
import pytest

from llm_npu.data.indexed import HEADER, open_indexed, write_indexed

pytestmark = pytest.mark.sampled

EOS = 2


@pytest.mark.parametrize(("vocab_size", "width"), [(100, 2), (65536, 2), (65537, 4), (128256, 4)])
def test_what_is_written_is_read_back(tmp_path, vocab_size, width):
    pieces = [np.array([0]), np.arange(5), np.array([], dtype=np.int64), np.array([vocab_size - 1, EOS])]
    write_indexed(tmp_path / "sub" / "p", pieces, vocab_size)
    read = open_indexed(tmp_path / "sub" / "p")
    assert isinstance(read.tokens, np.memmap)
    assert read.tokens.dtype.itemsize == width
    assert read.tokens.tolist() == [0, 0, 1, 2, 3, 4, vocab_size - 1, EOS]
    assert read.ends.tolist() == [1, 6, 6, 8]
    assert sorted(path.name for path in (tmp_path / "sub").iterdir()) == ["p.bin", "p.idx"]


@pytest.mark.paddlenlp
def test_paddlenlps_reader_reads_it_and_its_sentences_are_understood(tmp_path):
    from paddlenlp.data.indexed_dataset import MMapIndexedDataset, make_builder

    write_indexed(tmp_path / "p", [np.array([5, 6, EOS]), np.array([7])], 100)
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = MMapIndexedDataset(str(tmp_path / "p"), skip_warmup=True)
    assert [dataset.get(index)[0].tolist() for index in range(2)] == [[5, 6, EOS], [7]]
    assert dataset.doc_idx.tolist() == [0, 1, 2]

    builder = make_builder(str(tmp_path / "q.bin"), "mmap", np.int32)
    for document in ([[1, 3], [4]], [[5, 6, 7]]):
        for sentence in document:
            builder.add_item(sentence)
        builder.end_document()
    with contextlib.redirect_stdout(io.StringIO()):
        builder.finalize(str(tmp_path / "q.idx"))
    own_dataset = open_indexed(tmp_path / "q")
    assert (own_dataset.tokens.tolist(), own_dataset.ends.tolist()) == ([1, 3, 4, 5, 6, 7], [3, 6])


def damaged(name, change):
    return pytest.param(change, id=name)


def patched(offset, layout, value):
    def change(index, binary):
        struct.pack_into(layout, index, offset, value)

    return change


N = HEADER.size  # sizes int32 [3], offsets int64 [3], documents int64 [4] follow


@pytest.mark.parametrize(
    "change",
    [
        damaged("empty idx", lambda index, binary: index.clear()),
        damaged("idx inside its magic", lambda index, binary: index.__delitem__(slice(5, None))),
        damaged("idx inside its header", lambda index, binary: index.__delitem__(slice(20, None))),
        damaged("idx one byte short", lambda index, binary: index.pop()),
        damaged("idx one byte long", lambda index, binary: index.append(0)),
        damaged("other magic", patched(0, "<B", 0)),
        damaged("old layout", lambda index, binary: index.__setitem__(slice(0, 9), b"TNTIDX\0\0\0")),
        damaged("version 2", patched(9, "<Q", 2)),
        damaged("dtype 0", patched(17, "<B", 0)),
        damaged("dtype float", patched(17, "<B", 7)),
        damaged("more sentences", patched(18, "<Q", 4)),
        damaged("very many sentences", patched(18, "<Q", 2**63)),
        damaged("very many documents", patched(26, "<Q", 2**63)),
        damaged("negative size", patched(N, "<i", -3)),
        damaged("large size", patched(N + 4, "<i", 1000)),
        damaged("other offset", patched(N + 12 + 8, "<q", 5)),
        damaged("negative offset", patched(N + 12, "<q", -2)),
        damaged("documents start late", patched(N + 36, "<q", 1)),
        damaged("documents end early", patched(N + 36 + 24, "<q", 2)),
        damaged("documents run back", patched(N + 36 + 8, "<q", 3)),
        damaged("bin one byte short", lambda index, binary: binary.pop()),
        damaged("bin one byte long", lambda index, binary: binary.append(0)),
        damaged("empty bin", lambda index, binary: binary.clear()),
    ],
)
def test_damaged_pairs_are_refused_with_a_sentence(tmp_path, change):
    write_indexed(tmp_path / "p", [np.arange(4), np.arange(3), np.arange(2)], 100)
    index, binary = (bytearray((tmp_path / name).read_bytes()) for name in ("p.idx", "p.bin"))
    change(index, binary)
    (tmp_path / "p.idx").write_bytes(index)
    (tmp_path / "p.bin").write_bytes(binary)
    with pytest.raises(ValueError) as caught:
        open_indexed(tmp_path / "p")
    assert str(tmp_path / "p") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_cut_of_an_idx_is_refused(tmp_path):
    write_indexed(tmp_path / "p", [np.arange(4), np.arange(3)], 100)
    whole = (tmp_path / "p.idx").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "p.idx").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"p\.idx"):
            open_indexed(tmp_path / "p")


def test_half_a_pair_and_a_pair_without_tokens_are_refused(tmp_path):
    write_indexed(tmp_path / "p", [np.array([], dtype=np.int64)], 100)
    with pytest.raises(ValueError, match="contains no tokens"):
        open_indexed(tmp_path / "p")
    (tmp_path / "p.bin").unlink()
    with pytest.raises(ValueError, match=r"p\.bin is missing"):
        open_indexed(tmp_path / "p")
    with pytest.raises(ValueError, match="there is no text"):
        write_indexed(tmp_path / "q", [], 100)
    assert [path.name for path in tmp_path.iterdir()] == ["p.idx"]
