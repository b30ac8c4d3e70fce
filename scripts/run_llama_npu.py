"""``llm-npu train``: trains a language model on an Ascend NPU, or on a virtual one when there is no card."""

import sys

from llm_npu.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
