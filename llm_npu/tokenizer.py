"""Tokenizers: loaded from a local directory, or a byte-level BPE trained on the text and cached."""

from __future__ import annotations


def load_tokenizer(path: str):
    """The PaddleNLP tokenizer in a local directory (tokenizer.json or sentencepiece's tokenizer.model)."""
    raise NotImplementedError


def trained_tokenizer(corpus, vocab_size: int, cache: str | None = None):
    """The byte-level BPE of ``vocab_size`` tokens trained on ``corpus`` (a ``llm_npu.data.Corpus``), cached."""
    raise NotImplementedError


def tokenizer_for(model, data, vocab_size: int):
    """The tokenizer that ModelArguments ``model`` and DataArguments ``data`` name: the directory of
    ``tokenizer_name_or_path``, else the model's directory, else (for a preset) one trained on the text.

    ValueError when it has more tokens than ``vocab_size``, the size of the model's vocabulary.
    """
    raise NotImplementedError
