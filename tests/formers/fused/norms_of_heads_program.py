"""Two ranks share Qwen3-VL's attention, and compare the gradients of its norms of heads with one process.

python norms_of_heads_program.py FOLDER parallel|sequence [unpatched]
"""

import sys

import numpy as np
import paddle
import ranks
from paddle.distributed import fleet

HEADS, HEAD_DIM, HIDDEN, LENGTH = 2, 8, 16, 6


def attention(ranks_of_heads: int, sequence_parallel: bool):
    from paddleformers.transformers.qwen3_vl.configuration import Qwen3VLTextConfig
    from paddleformers.transformers.qwen3_vl.modeling import Qwen3VLTextAttention

    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    config = Qwen3VLTextConfig(**sizes, head_dim=HEAD_DIM)
    config.tensor_model_parallel_size, config.sequence_parallel = ranks_of_heads, sequence_parallel
    config.fuse_rms_norm, config._attn_implementation = False, "eager"
    config.max_sequence_length = LENGTH
    return Qwen3VLTextAttention(config, 0)


def gradients(layer, x) -> dict:
    """Of the norms' weights, for the sum of squares of this rank's outputs."""
    tables = paddle.ones([1, LENGTH, HEAD_DIM]), paddle.zeros([1, LENGTH, HEAD_DIM])
    layer(x, position_embeddings=tables)[0].square().sum().backward()
    return {name: getattr(layer, name).weight.grad.numpy() for name in ("q_norm", "k_norm")}


def main(sequence_parallel: bool, patched: bool) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    paddle.set_device("npu")
    from llm_npu import patches
    from llm_npu.patches.paddleformers import parallel

    if not patched:
        parallel.fix_norms_of_heads = lambda: None
    patches.apply()
    rank = paddle.distributed.get_rank()
    paddle.seed(1)
    x = paddle.randn([1, LENGTH, HIDDEN])
    whole = attention(1, False)
    columns = HEADS * HEAD_DIM * 3 // 2
    weights = {
        "qkv_proj.weight": whole.qkv_proj.weight[:, rank * columns : (rank + 1) * columns],
        "o_proj.weight": whole.o_proj.weight[rank * HEAD_DIM : (rank + 1) * HEAD_DIM],
    }
    shared = attention(2, sequence_parallel)
    for name, weight in shared.named_parameters():
        if name in weights:
            weight.set_value(weights[name])
    expected = gradients(whole, x)
    local = x[0, rank * LENGTH // 2 : (rank + 1) * LENGTH // 2] if sequence_parallel else x
    summed = gradients(shared, local)
    errors = {
        name: float(np.abs(summed[name] - expected[name]).max() / np.abs(expected[name]).max())
        for name in expected
    }
    ranks.write(errors)


if __name__ == "__main__":
    main(sys.argv[2] == "sequence", "unpatched" not in sys.argv)
