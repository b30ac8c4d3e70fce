"""``llm-npu prepare_data``: tokenizes text once, for many runs."""

import sys

from llm_npu.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["prepare_data", *sys.argv[1:]]))
