"""``llm-npu accept_card``: compares a card with the virtual NPU."""

import sys

from llm_npu.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["accept_card", *sys.argv[1:]]))
