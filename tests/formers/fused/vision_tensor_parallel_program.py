"""Two ranks that share the text model of a vision-language model, compared with one process.

python vision_tensor_parallel_program.py FOLDER FAMILY parallel|sequence [PATCH]

PATCH: a patch to leave out.
"""

import sys

import numpy as np
import paddle
import ranks
from paddle.distributed import fleet


def main(model_type: str, sequence_parallel: bool, left_out: list[str]) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    paddle.set_device("npu")
    from fused_models import comparison, vision
    from paddle.distributed.fleet.utils.sequence_parallel_utils import (
        register_sequence_parallel_allreduce_hooks,
    )

    from llm_npu.patches.paddleformers import vision as patches
    from llm_npu.surgery import apply_fused_kernels

    for patch in left_out:
        setattr(patches, patch, lambda: None)
    (family,) = (family for family in vision.FAMILIES if family.model_type == model_type)
    family, rank = family.with_grouped_heads(), paddle.distributed.get_rank()
    batch, inputs = vision.batch(False), vision.inputs(family, False)
    split = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": sequence_parallel,
        "max_sequence_length": vision.LENGTH,
        "tensor_parallel_output": True,
    }

    def results(model) -> dict:
        model.train()
        loss, _ = comparison.loss_and_logits(family, model, batch, **inputs)
        loss.backward()
        arrays = {"loss": comparison.array(loss)}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                arrays[name] = comparison.array(parameter.grad)
        model.clear_gradients()
        return arrays

    def part(name: str, values):
        """This rank's part of an array of the whole model."""
        for axis, size in enumerate(shapes.get(name, ())):
            if size != values.shape[axis]:
                joined = np.split(values, 2 if "up_gate_proj" in name else 1, axis)
                return np.concatenate([np.split(block, 2, axis)[rank] for block in joined], axis)
        return values

    whole = family.build()
    shared = family.build(split=split)  # vision towers are not divided
    shapes = {name: parameter.shape for name, parameter in shared.named_parameters()}
    for (name, parameter), (_, other) in zip(
        shared.named_parameters(), whole.named_parameters(), strict=True
    ):
        parameter.set_value(part(name, other.numpy()))
    if sequence_parallel:
        register_sequence_parallel_allreduce_hooks(shared, 1, False)  # as the trainer does
    expected = results(whole)
    errors = {"split": sum(shapes[name] != list(p.shape) for name, p in whole.named_parameters())}
    for run in ("unfused", "fused"):
        if run == "fused":
            apply_fused_kernels(shared, family.operators, strict=True)
        values = results(shared)
        assert values.keys() == expected.keys()
        errors[run] = {
            name: float(np.abs(array - (own := part(name, expected[name]))).max() / np.abs(own).max())
            for name, array in values.items()
        }
    ranks.write(errors)


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3] == "sequence", sys.argv[4:])
