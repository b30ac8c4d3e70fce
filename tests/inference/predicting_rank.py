"""A rank that runs an exported program.

Arguments: the folder of the report, that of the programs, and a file of token ids. The report has the logits.
"""

import sys

import numpy as np
import ranks


def main(folder: str, ids: str) -> None:
    from llm_npu.inference import export

    predictor = export.load(folder, "npu")
    ranks.write({"logits": predictor(np.load(ids)).tolist()})


if __name__ == "__main__":
    main(*sys.argv[2:])
