"""``llm-npu generate``: continues prompts with a model from a local checkpoint."""

import sys

from llm_npu.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["generate", *sys.argv[1:]]))
