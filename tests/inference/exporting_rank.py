"""A rank that exports a checkpoint, or runs the exported program.

Arguments: the folder of the report, "export" or "run", that of the checkpoint, that of the programs, and a
file of token ids. The report has the logits of the program.
"""

import sys

import numpy as np
import ranks


def exported(checkpoint: str, folder: str, ids: np.ndarray) -> None:
    from llm_npu import patches
    from llm_npu.inference.export_ranks import export_ranks
    from llm_npu.inference.mesh import Mesh

    patches.apply()
    mesh = Mesh(tensor=2, auto=True)
    mesh.join()
    export_ranks(checkpoint, folder, mesh, (ids.shape[0] + 1, ids.shape[1] + 4))


def main(step: str, checkpoint: str, folder: str, ids: str) -> None:
    rows = np.load(ids)
    if step == "export":
        exported(checkpoint, folder, rows)
        ranks.write({})
        return
    from llm_npu.inference import export

    predictor = export.load(folder, "npu")
    ranks.write({"logits": predictor(rows).tolist()})


if __name__ == "__main__":
    main(*sys.argv[2:])
