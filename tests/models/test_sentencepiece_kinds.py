"""The kind of a sentencepiece model, read without protobuf's generated code, which not every release has."""

import io
from types import SimpleNamespace

import pytest
import sentencepiece

pytestmark = pytest.mark.paddlenlp
TEXT = [f"the quick brown fox {number} jumps over lazy dogs {7 * number}" for number in range(300)]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_the_kind_of_a_model(tmp_path, kind):
    from llm_npu.models.paddlenlp.tokenizers import is_bpe

    model, size = io.BytesIO(), 30 if kind == "word" else 60
    options = {"model_type": kind, "vocab_size": size, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=model, **options)
    file = tmp_path / "tokenizer.model"
    file.write_bytes(model.getvalue())
    assert is_bpe(SimpleNamespace(vocab_file=file)) == (kind == "bpe")
