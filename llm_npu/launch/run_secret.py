"""The secret of a run on several machines: who does not know it cannot take part in the run.

Importing this module imports no framework.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from llm_npu.core.errors import UserError

VARIABLE, FILE = "LLM_NPU_RUN_SECRET", "LLM_NPU_RUN_SECRET_FILE"
SHORTEST, LONGEST = 16, 4096  # characters: a short one can be guessed
HOW = "make one by `openssl rand -hex 16`"


def read(environ: Mapping[str, str] = os.environ) -> str:
    """The secret of ``VARIABLE``, or of the file that ``FILE`` names; "" if neither is set.

    UserError for both, for a secret that is too short, and for a file that others may read.
    """
    secret, file = environ.get(VARIABLE, ""), environ.get(FILE, "")
    if secret and file:
        raise UserError(f"{VARIABLE} and {FILE} are both set; set one of them.")
    name = VARIABLE
    if file:
        secret, name = _content(Path(os.path.expanduser(file))), f"{FILE}: {file}"
    if (secret or file) and not (SHORTEST <= len(secret) <= LONGEST and secret.isprintable()):
        raise UserError(
            f"{name} has {len(secret)} characters; accepted: {SHORTEST} to {LONGEST} printable ones on one "
            f"line ({HOW})."
        )
    return secret


def _content(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would wait
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{FILE} is {str(file)!r}, which cannot be read: {why}.") from None
    try:
        mode = os.fstat(descriptor).st_mode
        content = os.read(descriptor, LONGEST + 2) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(mode):
        raise UserError(f"{FILE} is {file}, which is not a file; accepted: a text file of one line.")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(
            f"{FILE} is {file}, which other users may read or write; run `chmod 600 {file}` first."
        )
    return content.decode("utf-8", "replace").rstrip("\r\n")
