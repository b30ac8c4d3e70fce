"""``llm-npu check_dtypes``: does a model stay on an Ascend card's cores?"""

import sys

from llm_npu.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["check_dtypes", *sys.argv[1:]]))
