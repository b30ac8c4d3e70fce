"""Two ranks that share a model of PaddleFormers: what it gives unfused, with other roundings, and fused.

python tensor_parallel_program.py FOLDER FAMILY parallel|sequence [PATCH]

PATCH: a patch of llm_npu.patches.paddleformers.tensor_parallel that is left out.
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
    from llm_npu.patches.paddleformers import tensor_parallel
    from llm_npu.surgery import apply_fused_kernels

    if left_out:
        setattr(tensor_parallel, left_out, lambda: None)
    family = {**BY_NAME, "many experts": Family("many experts", "qwen3_moe", MANY_EXPERTS)}[name]
    split = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": sequence_parallel,
        "max_sequence_length": LENGTH,
        "tensor_parallel_output": True,
    }
    whole = family.build()
    stock = weights.to_stock(whole)

    def build(disturbance: int | None = None):
        model = family.build(**split)
        weights.from_stock(model, stock)
        family.plain(model)
        model.train()
        if sequence_parallel:
            register_sequence_parallel_allreduce_hooks(model, 1, False)  # as the trainer does
        if disturbance is not None:
            round_otherwise(model, disturbance)
        return model

    def part(model, of_whole: dict) -> dict:
        """This rank's part of the results of the whole model."""
        arrays = {}
        for key, parameter in layout.parameters(whole).items():
            for block in layout.blocks(key, parameter, whole.config)[1]:
                array = arrays.setdefault(block.name, np.empty(block.shape))
                array[block.box] = block.of(of_whole[key])
        found = {"loss": of_whole["loss"]}
        for key, parameter in layout.parameters(model).items():
            shape, blocks = layout.blocks(key, parameter, model.config)
            found[key] = np.empty(shape)
            for block in blocks:
                block.of(found[key])[...] = arrays[block.name][block.box]
        return found

    batch = random_batch()
    unfused, *others = (results(family, build(seed), batch) for seed in (None, *OTHER_ROUNDINGS))
    model = build()
    report = apply_fused_kernels(model, strict=True)
    paddle_fused.reset_what_ran()
    fused = results(family, model, batch)
    ran = sorted({each.operator for each in paddle_fused.what_ran()})
    family.plain(whole)
    alone = part(model, results(family, whole, batch))
    beyond = {"fused": {}, "alone": {}}
    for run, found in (("fused", fused), ("alone", alone)):
        for key, values in found.items():
            # Root mean squares: the largest of an expert's few tokens would be near or not by luck.
            reference = unfused[key]
            apart, *allowed = (
                np.sqrt(np.square(each - reference).mean()) for each in (values, *(o[key] for o in others))
            )
            bound = 2 * max(allowed) + ROUNDING["float32"] * np.abs(reference).max()
            if not apart <= bound:
                beyond[run][key] = [apart, bound]
    ranks.write({"beyond": beyond, "fused": report.count(), "ran": ran, "loss": float(unfused["loss"])})


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3] == "sequence", *sys.argv[4:])
