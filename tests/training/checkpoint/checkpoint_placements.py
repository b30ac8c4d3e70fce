"""A program of two ranks: auto-parallel tensors are stored as whole ones, and read with other placements.

checkpoint_placements.py FOLDER
"""

import sys
from pathlib import Path

import virtual_npu

virtual_npu.activate()

import numpy as np  # noqa: E402
import paddle  # noqa: E402
import paddle.distributed as distributed  # noqa: E402
import ranks as launcher  # noqa: E402
from paddle.distributed import Partial, Replicate, Shard  # noqa: E402
from paddle.distributed.auto_parallel.api import dtensor_from_local  # noqa: E402
from paddlenlp.transformers import LlamaConfig  # noqa: E402

from llm_npu.core.ranks import Ranks  # noqa: E402
from llm_npu.core.tensor_file import Reader  # noqa: E402
from llm_npu.training.checkpoint import path_of, saving, tensors  # noqa: E402

NAME, SHAPE = "model.layers.0.self_attn.qkv_proj.weight", (4, 16)
CONFIG = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, hidden_size=8)
WHOLE = np.arange(64, dtype=np.float32).reshape(SHAPE)


def placed(whole: np.ndarray, placement) -> paddle.Tensor:
    """``whole`` over two processes."""
    mesh = distributed.ProcessMesh([0, 1], dim_names=["x"])
    if placement.is_shard():
        whole = np.split(whole, 2, axis=placement.get_dim())[distributed.get_rank()]
    return dtensor_from_local(paddle.to_tensor(np.ascontiguousarray(whole)), mesh, [placement])


def main() -> None:
    folder = Path(sys.argv[1]) / "output"
    distributed.init_parallel_env()
    ranks = Ranks.of_run()
    placements = {"rows": Shard(0), "columns": Shard(1), "everywhere": Replicate()}
    results, files = {}, set()
    for step, (name, placement) in enumerate(placements.items()):
        held = tensors.of_parameters({NAME: placed(WHOLE, placement)}, CONFIG)
        saving.Checkpoints(folder, ranks).save(step, {"model": held})
        file = path_of(folder, step) / "model.safetensors"
        files.add(file.read_bytes())
        stored = Reader([file])
        heads = WHOLE.T.reshape(2, 4, 2, SHAPE[0])
        right = np.array_equal(stored[NAME.replace("qkv", "q")], heads[:, :2].reshape(8, SHAPE[0]))
        for other, wanted in placements.items():
            tensor = placed(np.zeros_like(WHOLE), wanted)
            tensors.load(path_of(folder, step), "model", tensors.of_parameters({NAME: tensor}, CONFIG))
            mine = placed(WHOLE, wanted)._local_value().numpy()
            results[f"{name} to {other}"] = bool(right and (tensor._local_value().numpy() == mine).all())
    results["the same file"] = len(files) == 1
    try:
        tensors.of_parameters({NAME: placed(WHOLE, Partial())}, CONFIG)
    except ValueError as error:
        results["partial"] = str(error)
    launcher.write(results)


if __name__ == "__main__":
    main()
