"""PaddleNLP's classes for a tokenizer's files. Importing it imports paddlenlp."""

from pathlib import Path

from paddlenlp.transformers import LlamaTokenizer
from paddlenlp.transformers import PretrainedTokenizerFast as Fast
from sentencepiece import sentencepiece_model_pb2 as pb

__all__ = ["Fast", "is_bpe", "sentencepiece"]


def sentencepiece(vocab_file: str, roles: dict[str, str], add) -> tuple[LlamaTokenizer, list[str]]:
    """The tokenizer of sentencepiece's ``vocab_file``, and the notes of ``add``, which adds tokens to it."""
    tokenizer = LlamaTokenizer(vocab_file, **roles)
    return tokenizer, add(tokenizer)


def is_bpe(tokenizer: LlamaTokenizer) -> bool:
    """Whether its model is BPE; sentencepiece has others."""
    model = pb.ModelProto.FromString(Path(tokenizer.vocab_file).read_bytes())
    return model.trainer_spec.model_type == pb.TrainerSpec.BPE
