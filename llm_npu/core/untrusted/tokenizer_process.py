"""Runs a tokenizer.json in a separate process, so that a hostile file cannot exhaust or crash this one.

    with TokenizerProcess(folder / "tokenizer.json", "the tokenizer in FOLDER") as tokenizer:
        ids = tokenizer.ids(["one text", "another"])

A tokenizer.json of a few kilobytes can cost unbounded memory and time: ids near 2**32, a normalizer that
multiplies text, a regular expression that backtracks. The Rust library aborts when an allocation fails. The
limits are ``MOST_MEMORY``, and ``MOST_SECONDS`` of processor time for each request.

Run as a program, this file is the separate process. It imports only the standard library and tokenizers.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

MOST_MEMORY = 2 << 30  # bytes of data, in addition to Python and the library
MOST_SECONDS = 20  # of processor time, over all threads
LARGEST_FILE = 256 << 20  # bytes; the largest vocabularies in use need about 35 MB
LARGEST_ID = (1 << 22) - 1  # the largest vocabulary in use has less than a third of it
THREADS = 8  # each holds the intermediate results of a text

_json = json.JSONEncoder(allow_nan=False).encode


class TokenizerProcess:
    """The tokenizer in the file ``source``, or in JSON text, without truncation and padding.

    ``name`` is used in messages. Raises UserError if the tokenizer cannot be read, fails, or exceeds a limit.
    This process needs memory only for the tokenizer's results.
    """

    def __init__(self, source: Path | str, name: str):
        self._name = name
        parent, child = os.pipe(), os.pipe()
        numbers = (child[0], parent[1], MOST_MEMORY, MOST_SECONDS)
        command = [sys.executable, str(Path(__file__).resolve()), *map(str, numbers)]
        threads = str(min(THREADS, len(os.sched_getaffinity(0))))
        self._process = subprocess.Popen(
            command,
            pass_fds=(child[0], parent[1]),
            env={"RAYON_NUM_THREADS": threads, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # Rust's panics
        )
        os.close(child[0])
        os.close(parent[1])
        self._requests = Connection(child[1], readable=False)
        self._replies = Connection(parent[0], writable=False)
        try:
            # the largest id of the vocabulary
            self.largest_id: int = self._answer({"source": str(source), "is_file": isinstance(source, Path)})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TokenizerProcess:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def ids(self, texts: Sequence[str], special: bool, frame: bool) -> list[array.array]:
        """The ids of each text, uint32.

        Args:
            special: Text that spells a special token becomes that token; otherwise it stays text.
            frame: Add the tokens that the tokenizer puts around a text, such as a begin-of-text token.
        """
        lengths = self._answer({"texts": list(texts), "special": special, "frame": frame})
        ids = []
        for length in lengths:
            ids.append(array.array("I"))
            if length:
                ids[-1].frombytes(self._received())
        return ids

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decode each row of ids, without special tokens."""
        return self._answer({"rows": [[*map(int, row)] for row in rows]})

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        for connection in (self._requests, self._replies):
            connection.close()  # the process exits when its requests end
        self._process.kill()
        self._process.wait()

    def _answer(self, request: dict):
        try:
            self._requests.send_bytes(_json(request).encode())
            answer = json.loads(self._replies.recv_bytes())
        except (EOFError, OSError):
            raise _UserError(f"{self._name} {_ended(self._process.wait())}") from None
        if "error" in answer:
            raise _UserError(f"{self._name} {answer['error']}")
        return answer["result"]

    def _received(self) -> bytes:
        try:
            return self._replies.recv_bytes()
        except (EOFError, OSError):
            raise _UserError(f"{self._name} {_ended(self._process.wait())}") from None


def _UserError(sentence: str) -> Exception:
    from llm_npu.core.errors import UserError  # the separate process does not import it

    return UserError(sentence)


def _ended(status: int) -> str:
    """Why the process exited."""
    if status == -signal.SIGXCPU:
        return f"takes more than {MOST_SECONDS} s of processor time for one piece of text; use another one"
    if status in (-signal.SIGABRT, -signal.SIGSEGV, _NO_MEMORY):
        return f"needs more than {MOST_MEMORY >> 20:,} MiB of memory; use another one"
    return f"cannot be used: its process exited with status {status}"


_NO_MEMORY = 3  # exit status


class _Refused(Exception):
    """The tokenizer is invalid; becomes a UserError in the parent process."""


def _serve(requests: Connection, replies: Connection, most_memory: int, most_seconds: int) -> None:
    import tokenizers

    tokenizer = None
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    _limit(resource.RLIMIT_DATA, used + most_memory)
    while True:
        request = json.loads(requests.recv_bytes())
        times = os.times()
        _limit(resource.RLIMIT_CPU, int(times.user + times.system) + most_seconds)
        try:
            blobs: list[array.array] = []
            if tokenizer is None:
                loaded = _loaded(tokenizers.Tokenizer, request)
                result = _largest_id(loaded)
                tokenizer = loaded
            elif "rows" in request:
                result = tokenizer.decode_batch(request["rows"], skip_special_tokens=True)
            else:
                tokenizer.encode_special_tokens = not request["special"]
                encodings = tokenizer.encode_batch_fast(request["texts"], add_special_tokens=request["frame"])
                blobs = [array.array("I", encoding.ids) for encoding in encodings]
                result = [len(blob) for blob in blobs]
        except MemoryError:
            raise
        except BaseException as error:  # a Rust panic derives from BaseException
            what = "cannot be read" if tokenizer is None else "cannot encode it"
            replies.send_bytes(_json({"error": f"{what}: {_said(error)}"}).encode())
            continue
        replies.send_bytes(_json({"result": result}).encode())
        for blob in blobs:
            if blob:
                replies.send_bytes(blob.tobytes())


def _loaded(kind, request: dict):
    if not request["is_file"]:
        return kind.from_str(request["source"])
    size = os.path.getsize(request["source"])
    if size > LARGEST_FILE:
        raise _Refused(f"{request['source']} is larger than {LARGEST_FILE >> 20} MiB")
    return kind.from_file(request["source"])


def _largest_id(tokenizer) -> int:
    """Also checks that the tokenizer can be serialized: gaps between ids cost memory."""
    largest = max([*tokenizer.get_vocab(with_added_tokens=True).values()], default=-1)
    if largest < 0:
        raise _Refused("its vocabulary is empty")
    if largest > LARGEST_ID:
        raise _Refused(f"its vocabulary has the id {largest}; accepted: 0 to {LARGEST_ID}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.to_str()
    return largest


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main(argv: list[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent handles signals, and this process exits with it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reading, writing, *limits = map(int, argv)
    requests, replies = Connection(reading, writable=False), Connection(writing, readable=False)
    try:
        with contextlib.suppress(EOFError, BrokenPipeError):
            _serve(requests, replies, *limits)
    except MemoryError:
        os._exit(_NO_MEMORY)


if __name__ == "__main__":
    main(sys.argv[1:])
