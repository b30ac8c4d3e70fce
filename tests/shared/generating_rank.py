"""A rank that generates from checkpoints, with the library that is installed.

Arguments: the folder of the report, the fields of ``Mesh`` as JSON, a dtype, and the folders of checkpoints.
The report has for each checkpoint by its name what ``generated`` returns, with a 16-bit dtype what
``last_logits`` does, and the elements of this rank's parameters.
"""

import json
import sys
from pathlib import Path

import numpy as np

VOCABULARY, END, NEW = 128, 2, 8
WAYS = {"greedy": {}, "sampling": {"top_p": 0.9, "temperature": 1.5}, "beam": {"num_beams": 3}}


def prompts() -> list[list[int]]:
    """Of different lengths, without special tokens."""
    draw = np.random.default_rng(0)
    return [draw.integers(3, VOCABULARY, length).tolist() for length in (9, 4, 1, 7)]


def generated(model) -> dict[str, list[list[int]]]:
    """The new tokens of each prompt, by the way to choose them."""
    import paddle

    from llm_npu.inference.generate import generate

    tokens = {}
    for decode, options in WAYS.items():
        paddle.seed(3)
        tokens[decode] = generate(model, prompts(), NEW, decode, eos_token_id=END, **options).ids
    return tokens


def last_logits(model) -> list:
    """Of the token that follows each row, float32 [B, 1, V]."""
    import paddle

    ids = paddle.to_tensor(np.random.default_rng(1).integers(3, VOCABULARY, (3, 9)))
    with paddle.no_grad():
        (logits,) = model(input_ids=ids, use_cache=False, return_dict=False)
    return logits[:, -1:].astype("float32").tolist()


def main(fields: str, dtype: str, *checkpoints: str) -> None:
    import ranks

    from llm_npu import patches, surgery
    from llm_npu.inference.mesh import Mesh

    patches.apply()
    mesh = Mesh(**json.loads(fields))
    mesh.join()
    report = {}
    for folder in map(Path, checkpoints):
        model = mesh.load_model(folder, dtype)
        surgery.apply_fused_kernels(model)
        elements = sum(int(parameter.size) for parameter in model.parameters())
        entry = {"ids": generated(model)} if dtype == "float32" else {"logits": last_logits(model)}
        report[folder.name] = {"elements": elements, **entry}
    ranks.write(report)


if __name__ == "__main__":
    main(*sys.argv[2:])
