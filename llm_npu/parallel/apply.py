"""Apply a plan to a model: first to the parameters, then to the activation points."""

from __future__ import annotations

import re
from collections.abc import Callable

import paddle
import paddle.distributed as dist

from llm_npu.parallel import stages
from llm_npu.parallel.mesh import TENSOR_AXIS
from llm_npu.parallel.plan import ParallelPlan, Point, placements


def parallelize(model: paddle.nn.Layer, mesh: dist.ProcessMesh, plan: ParallelPlan) -> paddle.nn.Layer:
    """Shard ``model`` (PaddleNLP's single-device model, identical on every process) over ``mesh``, in place.

    The parameters become DistTensors, and hooks on the layers place their activations. Call this before
    creating the optimizer; the fused operators may be applied before or after.

    Raises ValueError for a plan without a rule for a parameter, and for degrees that do not divide the model.
    """
    _place(model, lambda _name: mesh, mesh, plan)
    return model


def parallelize_stages(
    model: paddle.nn.Layer, meshes: list[dist.ProcessMesh], plan: ParallelPlan
) -> paddle.nn.Layer:
    """`parallelize` for a pipeline program; each layer is placed on the mesh of its stage.

    A process does not store the values of other stages' parameters.
    """
    count = model.config.num_hidden_layers

    def mesh_of(name: str) -> dist.ProcessMesh:
        return meshes[stages.stage_of(name, len(meshes), count)]

    _place(model, mesh_of, meshes[0], plan)
    for stage, mesh in enumerate(meshes[1:], start=1):
        own = [model.llama.layers[index] for index in stages.layers_of(stage, len(meshes), count)]
        _place_activation(own[0], mesh, Point(".*", "input", plan.between))
        for layer in own:
            _move_arguments(layer, mesh)
    return model


def _place(
    model, mesh_of: Callable[[str], dist.ProcessMesh], any_mesh: dist.ProcessMesh, plan: ParallelPlan
) -> None:
    plan.check(model.config, any_mesh.get_dim_size(TENSOR_AXIS))
    layers = dict(model.named_sublayers())
    _place_parameters(layers, mesh_of, plan)
    for name, layer in layers.items():
        # An Identity replaces the layers of other pipeline stages.
        if isinstance(layer, paddle.nn.Identity):
            continue
        for point in plan.points:
            if re.fullmatch(point.pattern, name):
                _place_activation(layer, mesh_of(name), point)


def _place_parameters(layers: dict, mesh_of: Callable[[str], dist.ProcessMesh], plan: ParallelPlan) -> None:
    placed: dict[int, paddle.Tensor] = {}  # a tied parameter is placed once
    for name, layer in layers.items():
        for short, parameter in list(layer._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in placed:
                dim = plan.dim_of(f"{name}.{short}")
                placed[id(parameter)] = dist.shard_tensor(parameter, mesh_of(name), placements(None, dim))
            setattr(layer, short, placed[id(parameter)])


def _move_arguments(layer: paddle.nn.Layer, mesh: dist.ProcessMesh) -> None:
    """Reshard positions and masks, which the first stage creates for all layers."""

    def moved(argument):
        if not (isinstance(argument, paddle.pir.Value) and argument.is_dist_dense_tensor_type()):
            return argument
        if argument.process_mesh == mesh:
            return argument
        return dist.reshard(argument, mesh, argument.placements)

    layer.register_forward_pre_hook(lambda _layer, inputs: tuple(map(moved, inputs)))


def _place_activation(layer: paddle.nn.Layer, mesh: dist.ProcessMesh, point: Point) -> None:
    wanted = placements(0, point.dim)  # hidden states [B, S, H]: dp splits the batch

    def before(_layer, inputs):
        return (dist.reshard(inputs[0], mesh, wanted), *inputs[1:])

    def after(_layer, _inputs, output):
        if isinstance(output, tuple):
            return (dist.reshard(output[0], mesh, wanted), *output[1:])
        return dist.reshard(output, mesh, wanted)

    if point.at == "input":
        layer.register_forward_pre_hook(before)
    else:
        layer.register_forward_post_hook(after)
