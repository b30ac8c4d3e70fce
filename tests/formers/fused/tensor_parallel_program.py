"""Two ranks that share a model of PaddleFormers: what it gives unfused, with other roundings, and fused.

python tensor_parallel_program.py FOLDER FAMILY parallel|sequence
"""

import sys

import numpy as np
import paddle
import ranks
from paddle.distributed import fleet

OTHER_ROUNDINGS = range(8)


def main(name: str, sequence_parallel: bool) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    paddle.set_device("npu")
    from fused_models.comparison import LENGTH, random_batch, results
    from fused_models.formers import BY_NAME, MANY_EXPERTS, Family
    from fused_models.rounding import round_otherwise
    from precision import ROUNDING

    import paddle_fused
    from llm_npu.surgery import apply_fused_kernels

    family = {**BY_NAME, "many experts": Family("many experts", "qwen3_moe", MANY_EXPERTS)}[name]
    split = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": sequence_parallel,
        "max_sequence_length": LENGTH,
        "tensor_parallel_output": True,
    }

    def build(disturbance: int | None = None):
        model = family.build(**split)
        family.plain(model)
        model.train()
        if disturbance is not None:
            round_otherwise(model, disturbance)
        return model

    batch = random_batch()
    unfused, *others = (results(family, build(seed), batch) for seed in (None, *OTHER_ROUNDINGS))
    model = build()
    report = apply_fused_kernels(model, strict=True)
    paddle_fused.reset_what_ran()
    fused = results(family, model, batch)
    beyond = {}
    for key, values in unfused.items():
        # Root mean squares: the largest of an expert's few tokens would be near or not by luck.
        apart, *allowed = (np.sqrt(np.square(run[key] - values).mean()) for run in (fused, *others))
        bound = 2 * max(allowed) + ROUNDING["float32"] * np.abs(values).max()
        if not apart <= bound:
            beyond[key] = [apart, bound]
    ran = sorted({each.operator for each in paddle_fused.what_ran()})
    ranks.write({"beyond": beyond, "fused": report.count(), "ran": ran, "loss": float(unfused["loss"])})


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3] == "sequence")
