"""Auto-parallel inference: PaddleNLP's single-device model, placed on a mesh by the plan of its training.

The parameters are distributed tensors, and so are the keys and values of the cache, which are split by heads.
What leaves the model is dense: every rank gets the whole logits.
"""

from __future__ import annotations

from pathlib import Path

import paddle.distributed as dist

from llm_npu.models import families, pretrained, weights
from llm_npu.parallel import mesh as meshes
from llm_npu.parallel.apply import parallelize
from llm_npu.parallel.plan import dense, placements

from . import program, stages


def load_model(folder: str | Path, dtype: str | None, degrees: meshes.Degrees, to_static: bool = False):
    """This rank's shard of the model of a checkpoint, for ``generate``. Collective.

    ``to_static``: it computes by programs (``program``), which has no stages.
    """
    mesh = meshes.make(degrees)[degrees.stage]
    config = pretrained.config_of(folder)
    layers = stages.narrow(config, degrees.stage, degrees.pp)
    model = families.cast(families.new_model(config), pretrained.dtype_of(config, dtype))
    parallelize(model, mesh, dense(model.base_model_prefix))
    weights.load(model, folder, layers)
    model.eval()

    def whole(tensor):
        return (
            dist.reshard(tensor, mesh, placements(None, None))._local_value() if tensor.is_dist() else tensor
        )

    if to_static:
        program.StaticForward(model, mesh)
    elif degrees.pp > 1:
        stages.connect(model, meshes.column(degrees), whole)
    else:
        model.lm_head.register_forward_post_hook(lambda _layer, _inputs, logits: whole(logits))
    return model
