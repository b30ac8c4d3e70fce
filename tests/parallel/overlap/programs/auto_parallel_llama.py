"""A Llama split by llm_npu.parallel, in dygraph: its row-parallel layers overlap, and it trains as before.

``auto_parallel_llama.py FOLDER``, on a mesh of two axes: tp 2, and dp as many as there are ranks for it.
"""

from __future__ import annotations

import numpy as np
import paddle
import paddle.distributed as dist
import ranks
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

from llm_npu import patches
from llm_npu.parallel import Degrees, Session, Settings
from llm_npu.parallel.overlap import apply_overlap
from llm_npu.surgery import apply_fused_kernels

STEPS = 2
SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def examine() -> dict:
    degrees = Degrees(dp=dist.get_world_size() // 2, tp=2)
    results = {}
    for sequence_parallel in (False, True):
        losses = {}
        for overlap in (None, "serial", "pipelined:2"):
            session = _session(Settings(degrees, sequence_parallel=sequence_parallel))
            if overlap:
                split = 1 if sequence_parallel else None
                summary = apply_overlap(session.model, overlap, split=split, strict=True).summary()
            losses[str(overlap)] = _train(session)
        results["sequence parallel" if sequence_parallel else "tensor parallel"] = {
            "losses": losses,
            "summary": summary,
        }
    return results


def _session(settings: Settings) -> Session:
    paddle.seed(3)
    config = LlamaConfig(**SIZES, num_attention_heads=4, max_position_embeddings=32, use_cache=False)
    model = LlamaForCausalLM(config)
    random = np.random.default_rng(5)
    for parameter in model.parameters():
        parameter.set_value(random.standard_normal(parameter.shape).astype("float32") * 0.05)
    apply_fused_kernels(model, strict=True, use_fused_add_rms_norm=True)
    model.train()
    return Session(model, settings, lambda parameters: paddle.optimizer.SGD(0.1, parameters=parameters))


def _train(session: Session) -> list[float]:
    tokens = np.random.default_rng(1).integers(0, SIZES["vocab_size"], [2 * session.settings.degrees.dp, 17])
    rows = np.split(tokens, session.settings.degrees.dp)[dist.get_rank() // 2]
    return [session.step(rows[:, :-1], rows[:, 1:]) for _ in range(STEPS)]


if __name__ == "__main__":
    patches.apply()
    dist.init_parallel_env()
    ranks.write(examine())
