"""Text -> token ids, with memory that depends neither on the length of a text nor on the tokenizer.

    with running(tokenizer):                           # one process for all calls inside
        for document in encoded(tokenizer, documents):
            for part in document: ...                  # the ids of a document, in parts
        ids(tokenizer, ["one text", "another"])

A tokenizer.json is untrusted: it works in a process with limits (``core.untrusted.tokenizer_process``).
A text of more than ``PIECE`` characters is encoded in pieces, with the ids that it has as a whole. A piece is
encoded behind the last ``CONTEXT`` characters before it, C, and must meet three conditions:

    1.  ids(C + piece) begins with ids(C); the rest are the ids of the piece
    2.  the ids before the piece end with the second half of ids(C)
    3.  for all models but BPE: the piece begins with whitespace, which no token has behind another character

These are the ids of the whole text. Normalizers and pre-tokenizers look at the neighborhood of a place: by 1,
what follows C does not change it, and by 2, neither does what precedes C. A word may be cut: the ids of BPE
are those of a text if each two neighbors are the ids of their own text, and all neighbors here have been
neighbors in one encoding. Other models weigh whole words, which 3 does not cut. A piece that fails a
condition is joined to the one before it.
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
SHORTEST = 1 << 8  # a text costs more than its characters
LONGEST = 1 << 20  # characters that are encoded at once if they cannot be cut
PLACES = 16  # that are tried in text without whitespace
BLANK = "▁"  # how sentencepiece's tokens write a blank

Ids = Callable[[Sequence[str]], list[np.ndarray]]
_processes: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def encoded(tokenizer, documents: Iterable[Document]) -> Iterator[Iterator[np.ndarray]]:
    """The ids of each document in parts, int64, without begin- and end-of-text tokens.

    Text that spells a special token ("</s>" in an HTML page) is plain text: it does not end a document. The
    parts of a document must be consumed before the next document. UserError names the document.
    """
    with running(tokenizer):
        cutter = _Cutter(tokenizer, _finder(tokenizer, special=False, frame=False))
        short, size = [], 0  # documents of one piece, and what they cost
        for where, parts in documents:
            pieces = cut(parts, cutter.place)
            first, second = next(pieces, ""), next(pieces, None)
            if second is None:
                short.append((where, first))
                size += len(first) + SHORTEST
                if size < BATCH:
                    continue
            yield from _short(short, cutter.ids)
            short, size = [], 0
            if second is not None:
                yield _naming(where, cutter.encoded(itertools.chain([first, second], pieces)))
        yield from _short(short, cutter.ids)


def ids(tokenizer, texts: Sequence[str], frame: bool = False) -> list[np.ndarray]:
    """The ids of each text, int64; a text that spells a special token has that token.

    ``frame``: with what the tokenizer puts around a text, such as a begin-of-text token.
    """
    with running(tokenizer):
        find = _finder(tokenizer, special=True, frame=frame)
        if frame or max(map(len, texts), default=0) <= PIECE:
            return find(texts)
        cutter = _Cutter(tokenizer, find)
        return [np.concatenate([*cutter.encoded(cut([text], cutter.place))]) for text in texts]


def decoded(tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    """The text of each row of ids, without special tokens, and without ids that the tokenizer does not have.

    The vocabulary of a model may be larger than its tokenizer's.
    """
    if backend(tokenizer) is None:
        exactly = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        added = tokenizer.added_tokens_decoder
        known = [[token for token in row if token < tokenizer.vocab_size or token in added] for row in rows]
        return [tokenizer.decode(row, **exactly) for row in known]
    with running(tokenizer):
        return _processes[tokenizer].texts(rows)


def backend(tokenizer):
    """The Rust tokenizer; None for PaddleNLP's class for a sentencepiece model."""
    return getattr(tokenizer, "backend_tokenizer", None)


@contextlib.contextmanager
def running(tokenizer) -> Iterator[None]:
    """Keep the process of the tokenizer for all calls inside."""
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


class Kept:
    """The process of ``tokenizer``, kept until this object is deleted or Python exits.

    After an error, and where the tokenizer has got tokens or the process has ended since, a new one starts.
    """

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._process: TokenizerProcess | None = None
        self._size = 0  # of the vocabulary
        self._close: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The process serves all calls inside."""
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
        except BaseException:  # an answer may not have been read
            self._close()
            raise
        finally:
            del _processes[self._tokenizer]


def before_whitespace(text: str, first: int, last: int) -> int | None:
    """The last place from ``first`` to ``last`` with whitespace behind it and none before it."""
    places = (at for at in range(last, first, -1) if text[at].isspace() and not text[at - 1].isspace())
    return next(places, None)


def cut(
    parts: Iterable[str], place: Callable[[str, int, int], int | None] = before_whitespace
) -> Iterator[str]:
    """The text ``parts`` in pieces of at most ``PIECE`` characters; ``place`` chooses where they end."""
    text = ""
    for part in itertools.chain(parts, [None]):
        text += part or ""
        start = 0
        while len(text) - start > (2 * PIECE if part is not None else PIECE):
            end = start + PIECE
            end = place(text, start + PIECE // 2, end) or end
            yield text[start:end]
            start = end
        text = text[start:]
    if text:
        yield text


class _Cutter:
    """Cuts and encodes texts by the conditions above; ``ids`` encodes whole texts."""

    def __init__(self, tokenizer, find: Ids):
        self.ids = find
        self._only_at_blanks, self._never = _restrictions(tokenizer)

    def place(self, text: str, first: int, last: int) -> int | None:
        """A place from ``first`` to ``last`` for a cut: before whitespace, or where condition 1 holds."""
        if found := before_whitespace(text, first, last):
            return found
        if self._only_at_blanks or self._never:
            return None
        places = range(last, max(first, last - PLACES), -1)
        contexts = [text[max(0, at - CONTEXT) : at] for at in places]
        around = [text[max(0, at - CONTEXT) : at + CONTEXT] for at in places]
        found = self.ids([*contexts, *around])
        tried = zip(places, found, found[len(contexts) :], strict=False)
        return next((at for at, alone, behind in tried if _begins(behind, alone)), None)

    def encoded(self, pieces: Iterator[str]) -> Iterator[np.ndarray]:
        """The ids of the text ``pieces``, in parts."""
        held, before = next(pieces, ""), ""  # ``before``: the context of ``held``
        held_ids = self.ids([held])[0]  # not final: the next piece may be joined to it
        while batch := list(itertools.islice(pieces, BATCH // PIECE)):
            contexts = [text[-CONTEXT:] for text in (held, *batch[:-1])]
            behind = ["".join(both) for both in zip(contexts, batch, strict=True)]
            found = self.ids([*contexts, *behind])
            for number, (context, piece) in enumerate(zip(contexts, batch, strict=True)):
                alone, behind = found[number], found[len(batch) + number]
                if self._may_begin(piece) and _ends(held_ids, alone) and _begins(behind, alone):
                    yield held_ids
                    before, held, held_ids = context, piece, behind[len(alone) :]
                else:
                    held += piece
                    held_ids = self._joined(before, held)
        yield held_ids

    def _joined(self, before: str, text: str) -> np.ndarray:
        if len(text) <= LONGEST:
            alone, behind = self.ids([before, before + text])
            if not len(alone) or _begins(behind, alone):
                return behind[len(alone) :]
        raise UserError(
            f"{len(text):,} characters, beginning with {text[:20]!r}, cannot be encoded in pieces by this "
            "tokenizer; break them up, or use another tokenizer"
        )

    def _may_begin(self, piece: str) -> bool:
        return not self._never and (piece[0].isspace() or not self._only_at_blanks)


def _begins(behind: np.ndarray, alone: np.ndarray) -> bool:
    """Condition 1, which says nothing where a context has no ids."""
    return len(alone) > 0 and np.array_equal(behind[: len(alone)], alone)


def _ends(before: np.ndarray, alone: np.ndarray) -> bool:
    """Condition 2."""
    half = alone[len(alone) // 2 :]
    return len(half) <= len(before) and np.array_equal(before[len(before) - len(half) :], half)


def _restrictions(tokenizer) -> tuple[bool, bool]:
    """Whether a text can be cut before whitespace only, and whether it cannot be cut at all: condition 3."""
    rust = backend(tokenizer)
    if rust is not None:
        is_bpe = type(rust.model).__name__ == "BPE"
    else:
        from llm_npu.models.library import tokenizers

        is_bpe = tokenizers.is_bpe(tokenizer)
    if is_bpe:
        return False, False
    # An added token across a cut changes the ids of C: condition 1.
    tokens = tokenizer.get_vocab() if rust is None else rust.get_vocab(with_added_tokens=False)
    spaced = ("".join(" " if each.isspace() or each == BLANK else "x" for each in token) for token in tokens)
    return True, any("x " in token for token in spaced)


def _finder(tokenizer, special: bool, frame: bool) -> Ids:
    """The function that encodes whole texts."""
    if backend(tokenizer) is not None:
        process = _processes[tokenizer]
        return lambda texts: [
            np.frombuffer(one, np.uint32).astype(np.int64) for one in process.ids(texts, special, frame)
        ]

    def find(texts: Sequence[str]) -> list[np.ndarray]:
        try:
            if special or frame:
                options = {} if frame else {"add_special_tokens": False}
                found = [tokenizer(text, **options)["input_ids"] for text in texts]
            else:
                found = tokenizer.sp_model.encode([*texts])
        except Exception as error:  # sentencepiece raises RuntimeError, the library whatever it meets
            raise UserError(f"the tokenizer cannot encode the text: {error}") from error
        return [np.asarray(one, dtype=np.int64) for one in found]

    return find


def _short(documents: list[tuple[str, str]], find: Ids) -> Iterator[Iterator[np.ndarray]]:
    if documents:
        first, last = documents[0][0], documents[-1][0]
        with _about(first if first == last else f"{first} to {last}"):
            found = find([text for _, text in documents])
        yield from (iter([one]) for one in found)


def _naming(where: str, parts: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    with _about(where):
        yield from parts


@contextlib.contextmanager
def _about(where: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
