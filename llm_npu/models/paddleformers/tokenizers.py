"""The classes for a tokenizer's files. Importing it imports paddleformers."""

from pathlib import Path

from paddleformers.transformers.tokenizer_utils import PreTrainedTokenizerFast as Fast
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from llm_npu.core.errors import UserError

__all__ = ["Fast", "sentencepiece"]
SPACE = "▁"  # the space character in pieces


def sentencepiece(vocab_file: str, roles: dict[str, str], add) -> tuple[Fast, list[str]]:
    """Load sentencepiece's ``vocab_file``: (tokenizer, notes of ``add``, which adds tokens to it).

    The ids equal sentencepiece's. User-defined symbols are tokens, like control symbols; the text between
    them is encoded separately.

    The library's LlamaTokenizer, from transformers 5, ignores ``vocab_file`` and returns no ids; its
    ``from_pretrained`` omits the space that sentencepiece adds in front of a text.
    """
    model = pb.ModelProto.FromString(Path(vocab_file).read_bytes())
    if model.trainer_spec.model_type != pb.TrainerSpec.BPE:
        raise UserError(
            f"{vocab_file} cannot be read: it is not a BPE model, the only supported kind; convert it "
            "to a tokenizer.json"
        )
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    unknown = model.pieces[model.trainer_spec.unk_id].piece
    bytes_too = model.trainer_spec.byte_fallback
    bpe = BPE(ids, _merges(model, ids), unk_token=unknown, fuse_unk=True, byte_fallback=bytes_too)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = _normalizer(model.normalizer_spec)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    kinds = {pb.ModelProto.SentencePiece.CONTROL: True, pb.ModelProto.SentencePiece.USER_DEFINED: False}
    tokenizer.add_tokens(
        [
            AddedToken(piece.piece, normalized=False, special=kinds[piece.type])
            for piece in model.pieces
            if piece.type in kinds
        ]
    )
    notes = add(tokenizer)
    return Fast(tokenizer_object=tokenizer, **roles), notes


def _merges(model, ids: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs that form each piece, best pieces first: sentencepiece merges by piece score."""
    normal = [piece for piece in model.pieces if piece.type == pb.ModelProto.SentencePiece.NORMAL]
    merges = []
    for piece in sorted(normal, key=lambda candidate: -candidate.score):
        text = piece.piece
        pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        pairs = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        merges += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _normalizer(spec) -> normalizers.Sequence:
    """Map characters by ``spec`` and spaces to SPACE, and add one SPACE in front."""
    steps = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
