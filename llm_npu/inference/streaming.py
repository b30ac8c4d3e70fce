"""New tokens of one prompt as text, while they are generated. Importing this module imports no framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from llm_npu.data.text import encoding
from llm_npu.models.library import names

CONTEXT = 8  # tokens of the prompt in front of the first new one, on which its blank depends
INCOMPLETE = "\ufffd"  # how the bytes of a character that is not complete are decoded


class TextStreamer:
    """A streamer for the library's ``generate``: calls ``show(text)`` with what each token adds to the text.

    A character of several tokens is shown with its last one. Once ``finish`` has been called, the texts are
    together the continuation; tokenizers may decode bytes that are not valid UTF-8 otherwise as a whole.
    """

    def __init__(
        self, show: Callable[[str], object], tokenizer, prompt: Sequence[int], ends: Collection[int]
    ):
        self._show, self._tokenizer, self._ends = show, tokenizer, ends
        self._ids = [*prompt[-CONTEXT:]]
        self._start, self._done = 0, len(self._ids)  # ids[start:done] stand in front of what comes next
        self._shown = 0
        self._skip = names.STREAMS_PROMPT

    def put(self, tokens) -> None:
        """The new token of each row, int64 [1, 1]; with some libraries first the prompt."""
        if self._skip:
            self._skip = False
            return
        (token,) = tokens.flatten().tolist()
        if token in self._ends:
            return
        self._ids.append(token)
        rows = [self._ids[self._start : self._done], self._ids[self._start :]]
        before, text = encoding.decoded(self._tokenizer, rows)
        if len(text) > len(before) and not text.endswith(INCOMPLETE):
            self._start, self._done = self._done, len(self._ids)
            self._say(text[len(before) :])

    def end(self) -> None:
        """The library calls this after the last token, whose text is not known to it."""

    def finish(self, text: str) -> None:
        """Show what is left of the continuation ``text``."""
        if self._shown < len(text):
            self._say(text[self._shown :])

    def _say(self, text: str) -> None:
        self._shown += len(text)
        self._show(text)
