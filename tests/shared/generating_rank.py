"""A rank that generates from checkpoints, with the library that is installed.

Arguments: the folder of the report, the fields of ``Mesh`` as JSON, and the folders of checkpoints. The
report has what ``generated`` returns for each checkpoint by its name, and the elements of this rank's
parameters.
"""

import json
import sys
from pathlib import Path

import numpy as np

VOCABULARY, END, NEW = 128, 2, 8
WAYS = {
    "greedy": {},
    "sampling": {"top_p": 0.9, "temperature": 1.5},
    "beam": {"num_beams": 3},
}


def prompts() -> list[list[int]]:
    """Of different lengths, without special tokens."""
    draw = np.random.default_rng(0)
    return [draw.integers(3, VOCABULARY, length).tolist() for length in (9, 4, 1, 7)]


def generated(model) -> dict[str, list[list[int]]]:
    """The new tokens of each prompt, by the way to choose them."""
    import paddle

    from llm_npu.inference.generate import generate

    found = {}
    for decode, options in WAYS.items():
        paddle.seed(3)
        found[decode] = generate(model, prompts(), NEW, decode, eos_token_id=END, **options).ids
    return found


def main(fields: str, *checkpoints: str) -> None:
    import ranks

    from llm_npu import patches, surgery
    from llm_npu.inference.mesh import Mesh

    patches.apply()
    mesh = Mesh(**json.loads(fields))
    mesh.join()
    report = {}
    for folder in map(Path, checkpoints):
        model = mesh.load_model(folder)
        surgery.apply_fused_kernels(model)
        elements = sum(int(each.size) for each in model.parameters())
        report[folder.name] = {"ids": generated(model), "elements": elements}
    ranks.write(report)


if __name__ == "__main__":
    main(*sys.argv[2:])
