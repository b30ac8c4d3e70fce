"""PaddleNLP's classes for a tokenizer's files. Importing it imports paddlenlp."""

from paddlenlp.transformers import LlamaTokenizer as SentencePiece
from paddlenlp.transformers import PretrainedTokenizerFast as Fast

__all__ = ["Fast", "SentencePiece"]
