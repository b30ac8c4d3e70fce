"""Two ranks that share a model of PaddleFormers, unfused and fused: what it gives each of them alone.

python tensor_parallel_program.py FOLDER FAMILY parallel|sequence [PATCH]

PATCH: a patch of llm_npu.patches.paddleformers, of tensor_parallel or deepseek, that is left out.
"""

import sys

import numpy as np
import paddle
import ranks
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.sequence_parallel_utils import register_sequence_parallel_allreduce_hooks

OTHER_ROUNDINGS = range(8)


def main(name: str, sequence_parallel: bool, left_out: str | None = None) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    paddle.set_device("npu")
    from fused_models.comparison import LENGTH, random_batch, results
    from fused_models.formers import BY_NAME, MANY_EXPERTS, Family
    from fused_models.rounding import round_otherwise
    from precision import ROUNDING

    import paddle_fused
    from llm_npu.models import layout, weights
    from llm_npu.patches.paddleformers import deepseek, parallel
    from llm_npu.surgery import apply_fused_kernels

    if left_out:
        setattr(deepseek if hasattr(deepseek, left_out) else parallel, left_out, lambda: None)
    family = {**BY_NAME, "many experts": Family("many experts", "qwen3_moe", MANY_EXPERTS)}[name]
    split = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": sequence_parallel,
        "max_sequence_length": LENGTH,
        "tensor_parallel_output": True,
    }
    if name == "ernie4.5-moe":
        split["moe_group"] = "mp"

    def alone(disturbance: int | None = None):
        model = family.build()
        family.plain(model)
        model.train()
        if disturbance is not None:
            round_otherwise(model, disturbance)
        return model

    def shared():
        model = family.build(**split)
        weights.from_upstream(model, upstream)
        model.train()
        if sequence_parallel:
            register_sequence_parallel_allreduce_hooks(model, 1, False)  # as the trainer does
        return model

    whole = alone()
    upstream = weights.to_upstream(whole)

    def blocks_of(model, trained):
        """(name, shape, blocks) of each parameter that this rank has."""
        for key, parameter in layout.parameters(model).items():
            if key in trained:  # no buffer
                yield key, *layout.blocks(key, parameter, model.config)

    def part(model, of_whole: dict) -> dict:
        """This rank's part of the results of the whole model."""
        arrays = {}
        for key, _, blocks in blocks_of(whole, of_whole):
            for block in blocks:
                array = arrays.setdefault(block.name, np.empty(block.shape))
                array[block.box] = block.of(of_whole[key])
        arrays_of_rank = {"loss": of_whole["loss"]}
        for key, shape, blocks in blocks_of(model, of_whole):
            arrays_of_rank[key] = np.empty(shape)
            for block in blocks:
                block.of(arrays_of_rank[key])[...] = arrays[block.name][block.box]
        return arrays_of_rank

    batch = random_batch()
    reports = {}
    model = shared()
    if name != "ernie4.5-moe":  # made of kernels for CUDA
        reports["unfused"] = results(family, model, batch)
    report = apply_fused_kernels(model, family.operators, strict=True)
    paddle_fused.reset_dispatch_log()
    reports["fused"] = results(family, model, batch)
    ran = sorted({entry.operator for entry in paddle_fused.dispatch_log()})
    others = (results(family, alone(seed), batch) for seed in OTHER_ROUNDINGS)
    reference, *others = (part(model, arrays) for arrays in (results(family, whole, batch), *others))
    beyond = {run: {} for run in reports}
    for run, values in reports.items():
        for key, expected in reference.items():
            # Root mean squares: the largest of an expert's few tokens would be near or not by luck.
            apart, *allowed = (
                float(np.sqrt(np.square(values_of_rank - expected).mean()))
                for values_of_rank in (values[key], *(other[key] for other in others))
            )
            bound = 2 * max(allowed) + ROUNDING["float32"] * float(np.abs(expected).max())
            if not apart <= bound:
                beyond[run][key] = [apart, bound]
    ranks.write({"beyond": beyond, "fused": report.count(), "ran": ran, "loss": float(reference["loss"])})


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3] == "sequence", *sys.argv[4:])
