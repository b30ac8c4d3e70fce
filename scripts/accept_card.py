"""Evidence from a card: runs every part of the project on it, compares it with the virtual NPU, and collects
the results in a folder to send.

    python scripts/accept_card.py                                # all cards, at most 8, in at most 20 minutes
    python scripts/accept_card.py --only operators adamw
    python scripts/accept_card.py --device virtual_npu --cards 2 # the same without a card

Each piece is a separate process with a time limit: one that crashes, hangs or finds a wrong number is named,
and the next one starts. The folder --output_dir gets index.html, which begins with the differences from the
virtual NPU, and result.json. They name no host, user or folder; nothing is sent anywhere.

Exit codes: 0 everything is as on the virtual NPU; 1 something differs; 2 bad input, with one sentence on
stderr. docs/accept_card.md lists the checks.
"""

import sys
from pathlib import Path

from llm_npu.acceptance import command
from llm_npu.core import console


def main(argv: list[str]) -> int:
    return command.main(argv, Path(__file__).resolve().parent, __doc__)


if __name__ == "__main__":
    sys.exit(console.run(main, sys.argv[1:]))
