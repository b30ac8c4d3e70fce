"""Text -> token ids, in bounded memory for texts of any length and for any tokenizer.

    with running(tokenizer):                           # one process for all calls inside
        for document in encoded(tokenizer, documents):
            for chunk in document: ...                 # the ids of a document, in chunks
        ids(tokenizer, ["one text", "another"])

A tokenizer.json is untrusted: it runs in a subprocess with limits (``core.untrusted.tokenizer_process``).

A text of more than ``PIECE`` characters is encoded in pieces, with the same ids as the whole text. Let C be
the last ``CONTEXT`` characters before a piece. The piece must satisfy three conditions:

    1.  ids(C + piece) begins with ids(C); the remaining ids are those of the piece
    2.  the ids before the piece end with the second half of ids(C)
    3.  for all models except BPE: the piece begins with whitespace, and no token has whitespace after another
        character

Why the ids equal those of the whole text: normalizers and pre-tokenizers depend only on the neighborhood of a
position. By 1, the text after C does not change the ids of C; by 2, neither does the text before C. BPE may
cut a word: a sequence is the BPE encoding of its text if every two adjacent ids are the encoding of the text
of these two, and all adjacent ids here were adjacent in one encoding. Other models score whole words, which
condition 3 keeps together. A piece that fails a condition is joined to the previous piece.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted.tokenizer_process import TokenizerProcess

from .corpus import Document

PIECE = 1 << 16  # characters
CONTEXT = 1 << 10  # characters
BATCH = 1 << 19  # characters per call; the library needs about 200 bytes for each
OVERHEAD = 1 << 8  # per text in a call, in characters
LONGEST = 1 << 20  # characters encoded at once if they cannot be cut
CANDIDATES = 16  # cut positions to try in text without whitespace
BLANK = "▁"  # a blank in sentencepiece's tokens

Encode = Callable[[Sequence[str]], list[np.ndarray]]
_processes: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def encoded(tokenizer, documents: Iterable[Document]) -> Iterator[Iterator[np.ndarray]]:
    """The ids of each document in chunks, int64, without begin- and end-of-text tokens.

    Text that spells a special token ("</s>" in an HTML page) is plain text: it does not end a document. The
    chunks of a document must be consumed before the next document. A UserError names the document.
    """
    with running(tokenizer):
        cutter = _Cutter(tokenizer, _encoder(tokenizer, special=False, frame=False))
        short, size = [], 0  # documents of one piece, and their cost in characters
        for where, chunks in documents:
            pieces = cut(chunks, cutter.place)
            first, second = next(pieces, ""), next(pieces, None)
            if second is None:
                short.append((where, first))
                size += len(first) + OVERHEAD
                if size < BATCH:
                    continue
            yield from _short(short, cutter.ids)
            short, size = [], 0
            if second is not None:
                yield _naming(where, cutter.encoded(itertools.chain([first, second], pieces)))
        yield from _short(short, cutter.ids)


def ids(tokenizer, texts: Sequence[str], frame: bool = False) -> list[np.ndarray]:
    """The ids of each text, int64; text that spells a special token becomes that token.

    ``frame``: add the tokens that the tokenizer puts around a text, such as begin-of-text.
    """
    with running(tokenizer):
        encode = _encoder(tokenizer, special=True, frame=frame)
        if frame or max(map(len, texts), default=0) <= PIECE:
            return encode(texts)
        cutter = _Cutter(tokenizer, encode)
        return [np.concatenate([*cutter.encoded(cut([text], cutter.place))]) for text in texts]


def decoded(tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    """Decode each row of ids, without special tokens and unknown ids.

    A model's vocabulary can be larger than its tokenizer's.
    """
    if backend(tokenizer) is None:
        exactly = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        added = tokenizer.added_tokens_decoder
        known = [[token for token in row if token < tokenizer.vocab_size or token in added] for row in rows]
        return [tokenizer.decode(row, **exactly) for row in known]
    with running(tokenizer):
        return _processes[tokenizer].texts(rows)


def backend(tokenizer):
    """The Rust tokenizer; None for PaddleNLP's sentencepiece class."""
    return getattr(tokenizer, "backend_tokenizer", None)


@contextlib.contextmanager
def running(tokenizer) -> Iterator[None]:
    """Keep the tokenizer's process running for all calls inside."""
    rust = backend(tokenizer)
    if rust is None or tokenizer in _processes:
        yield
        return
    with TokenizerProcess(rust.to_str(), "the tokenizer") as process:
        _processes[tokenizer] = process
        try:
            yield
        finally:
            del _processes[tokenizer]


class KeptProcess:
    """The process of ``tokenizer``, kept until this object is deleted or Python exits.

    A new process starts after an error, after tokens were added, or after the process exited.
    """

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._process: TokenizerProcess | None = None
        self._size = 0  # of the vocabulary
        self._close: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Use the process for all calls inside."""
        rust = backend(self._tokenizer)
        if rust is None or self._tokenizer in _processes:
            yield
            return
        size = rust.get_vocab_size()
        if self._process is None or not self._process.is_running or size != self._size:
            self._close()
            self._process, self._size = TokenizerProcess(rust.to_str(), "the tokenizer"), size
            self._close = weakref.finalize(self, self._process.close)
        _processes[self._tokenizer] = self._process
        try:
            yield
        except BaseException:  # a reply may be left unread
            self._close()
            raise
        finally:
            del _processes[self._tokenizer]


def before_whitespace(text: str, first: int, last: int) -> int | None:
    """The last position between ``first`` and ``last`` with whitespace after it and none before it."""
    positions = (at for at in range(last, first, -1) if text[at].isspace() and not text[at - 1].isspace())
    return next(positions, None)


def cut(
    chunks: Iterable[str], place: Callable[[str, int, int], int | None] = before_whitespace
) -> Iterator[str]:
    """Cut the text ``chunks`` into pieces of at most ``PIECE`` characters; ``place`` chooses the cuts."""
    text = ""
    for chunk in itertools.chain(chunks, [None]):
        text += chunk or ""
        start = 0
        while len(text) - start > (2 * PIECE if chunk is not None else PIECE):
            end = start + PIECE
            end = place(text, start + PIECE // 2, end) or end
            yield text[start:end]
            start = end
        text = text[start:]
    if text:
        yield text


class _Cutter:
    """Cuts and encodes texts by the conditions above; ``ids`` encodes whole texts."""

    def __init__(self, tokenizer, ids: Encode):
        self.ids = ids
        self._only_at_blanks, self._never = _restrictions(tokenizer)

    def place(self, text: str, first: int, last: int) -> int | None:
        """A cut position between ``first`` and ``last``: before whitespace, or where condition 1 holds."""
        if position := before_whitespace(text, first, last):
            return position
        if self._only_at_blanks or self._never:
            return None
        positions = range(last, max(first, last - CANDIDATES), -1)
        contexts = [text[max(0, at - CONTEXT) : at] for at in positions]
        around = [text[max(0, at - CONTEXT) : at + CONTEXT] for at in positions]
        ids = self.ids([*contexts, *around])
        candidates = zip(positions, ids, ids[len(contexts) :], strict=False)
        return next((at for at, alone, joined in candidates if _begins(joined, alone)), None)

    def encoded(self, pieces: Iterator[str]) -> Iterator[np.ndarray]:
        """Yield the ids of the text ``pieces`` in chunks."""
        held, before = next(pieces, ""), ""  # ``before``: the context of ``held``
        held_ids = self.ids([held])[0]  # not final: the next piece may be joined to it
        while batch := list(itertools.islice(pieces, BATCH // PIECE)):
            contexts = [text[-CONTEXT:] for text in (held, *batch[:-1])]
            joined_texts = [context + piece for context, piece in zip(contexts, batch, strict=True)]
            ids = self.ids([*contexts, *joined_texts])
            for number, (context, piece) in enumerate(zip(contexts, batch, strict=True)):
                alone, joined = ids[number], ids[len(batch) + number]
                if self._may_begin(piece) and _ends(held_ids, alone) and _begins(joined, alone):
                    yield held_ids
                    before, held, held_ids = context, piece, joined[len(alone) :]
                else:
                    held += piece
                    held_ids = self._joined(before, held)
        yield held_ids

    def _joined(self, before: str, text: str) -> np.ndarray:
        if len(text) <= LONGEST:
            alone, joined = self.ids([before, before + text])
            if not len(alone) or _begins(joined, alone):
                return joined[len(alone) :]
        raise UserError(
            f"{len(text):,} characters, beginning with {text[:20]!r}, cannot be encoded in pieces by this "
            "tokenizer; break them up, or use another tokenizer"
        )

    def _may_begin(self, piece: str) -> bool:
        return not self._never and (piece[0].isspace() or not self._only_at_blanks)


def _begins(joined: np.ndarray, alone: np.ndarray) -> bool:
    """Condition 1; false for a context without ids, which proves nothing."""
    return len(alone) > 0 and np.array_equal(joined[: len(alone)], alone)


def _ends(before: np.ndarray, alone: np.ndarray) -> bool:
    """Condition 2."""
    half = alone[len(alone) // 2 :]
    return len(half) <= len(before) and np.array_equal(before[len(before) - len(half) :], half)


def _restrictions(tokenizer) -> tuple[bool, bool]:
    """Condition 3: (texts can only be cut before whitespace, texts cannot be cut at all)."""
    rust = backend(tokenizer)
    if rust is not None:
        is_bpe = type(rust.model).__name__ == "BPE"
    else:
        from llm_npu.models.library import tokenizers

        is_bpe = tokenizers.is_bpe(tokenizer)
    if is_bpe:
        return False, False
    # An added token across a cut changes the ids of C, which violates condition 1.
    tokens = tokenizer.get_vocab() if rust is None else rust.get_vocab(with_added_tokens=False)
    spaced = ("".join(" " if char.isspace() or char == BLANK else "x" for char in token) for token in tokens)
    return True, any("x " in token for token in spaced)


def _encoder(tokenizer, special: bool, frame: bool) -> Encode:
    """The function that encodes whole texts."""
    if backend(tokenizer) is not None:
        process = _processes[tokenizer]
        return lambda texts: [
            np.frombuffer(ids, np.uint32).astype(np.int64) for ids in process.ids(texts, special, frame)
        ]

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        try:
            if special or frame:
                options = {} if frame else {"add_special_tokens": False}
                ids = [tokenizer(text, **options)["input_ids"] for text in texts]
            else:
                ids = tokenizer.sp_model.encode([*texts])
        except Exception as error:  # sentencepiece raises RuntimeError, tokenizers various errors
            raise UserError(f"the tokenizer cannot encode the text: {error}") from error
        return [np.asarray(row, dtype=np.int64) for row in ids]

    return encode


def _short(documents: list[tuple[str, str]], encode: Encode) -> Iterator[Iterator[np.ndarray]]:
    if documents:
        first, last = documents[0][0], documents[-1][0]
        with _about(first if first == last else f"{first} to {last}"):
            ids = encode([text for _, text in documents])
        yield from (iter([row]) for row in ids)


def _naming(where: str, chunks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    with _about(where):
        yield from chunks


@contextlib.contextmanager
def _about(where: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
