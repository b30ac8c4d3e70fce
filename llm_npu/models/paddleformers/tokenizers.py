"""The classes for a tokenizer's files. Importing it imports paddleformers."""

from paddleformers.transformers import LlamaTokenizer as SentencePiece
from paddleformers.transformers.tokenizer_utils import PreTrainedTokenizerFast as Fast

__all__ = ["Fast", "SentencePiece"]
