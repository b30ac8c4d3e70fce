"""PaddleNLP's classes for a tokenizer's files. Importing it imports paddlenlp."""

from collections.abc import Iterator
from pathlib import Path

from paddlenlp.transformers import LlamaTokenizer
from paddlenlp.transformers import PretrainedTokenizerFast as Fast

__all__ = ["Fast", "is_bpe", "sentencepiece"]
TRAINER_SPEC, MODEL_TYPE, BPE = 2, 3, 2  # fields and a value of sentencepiece_model.proto


def sentencepiece(vocab_file: str, roles: dict[str, str], add) -> tuple[LlamaTokenizer, list[str]]:
    """Load sentencepiece's ``vocab_file``: (tokenizer, notes of ``add``, which adds tokens to it)."""
    tokenizer = LlamaTokenizer(vocab_file, **roles)
    return tokenizer, add(tokenizer)


def is_bpe(tokenizer: LlamaTokenizer) -> bool:
    """Whether the sentencepiece model is BPE.

    sentencepiece's protobuf module requires a newer protobuf than Paddle before 3.3.1 supports.
    """
    model = Path(tokenizer.vocab_file).read_bytes()
    trainers = [value for number, value in _fields(model) if number == TRAINER_SPEC]
    kinds = [value for trainer in trainers for number, value in _fields(trainer) if number == MODEL_TYPE]
    return kinds[-1:] == [BPE]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a protobuf message."""
    position = 0

    def varint() -> int:
        nonlocal position
        number = shift = 0
        while True:
            byte = message[position]
            position, number, shift = position + 1, number | (byte & 127) << shift, shift + 7
            if byte < 128:
                return number

    while position < len(message):
        tag = varint()
        kind = tag & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value, position = message[position : position + size], position + size
        yield tag >> 3, value
