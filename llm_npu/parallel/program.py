"""The static program of a training step, from ``dist.to_static``."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.api import dtensor_from_local
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

from llm_npu.parallel.gradients import in_float32
from llm_npu.parallel.loss import CausalLoss
from llm_npu.parallel.settings import Settings
from llm_npu.patches.gradients import ProgramNorm


class Program:
    """Forward, backward and optimizer for micro batches with the shapes of ``input_ids`` and ``labels``.

    The variables are in a separate scope, isolated from other programs of the process. They share memory with
    the dygraph parameters and optimizer states, which can be read and set between steps; in a pipeline, only
    those of this process's stage. ``norm`` is the gradient norm of the last step, in the first stage.
    """

    def __init__(
        self,
        causal: CausalLoss,
        settings: Settings,
        optimizer,
        input_ids: paddle.Tensor,
        labels: paddle.Tensor,
    ):
        self._scope = paddle.static.Scope()
        inputs = [_spec(input_ids, "input_ids"), _spec(labels, "labels")]
        with paddle.static.scope_guard(self._scope):
            self.dist_model = dist.to_static(
                causal,
                None,
                lambda loss, _labels: loss,
                optimizer,
                _strategy(settings),
                input_spec=[inputs, [_spec(labels, "loss_labels")]],
            )
            self.norm = ProgramNorm(self._scope)
            with in_float32(), self.norm.kept(optimizer):
                self.dist_model.train()
            states = self.dist_model.state_dict("opt")
        # Parameters, and buffers of layers, for example rotary tables.
        taken = self.dist_model._engine.concrete_program.parameters[0]
        self._tensors = [(tensor, tensor.name) for tensor in taken if self._scope.find_var(tensor.name)]
        self._tensors += _states_of(optimizer, states)
        self._show()

    def step(self, input_ids: paddle.Tensor, labels: paddle.Tensor) -> float:
        """The mean loss of the micro batches concatenated in [rows, S]; 0 before a pipeline's last stage."""
        for tensor, name in self._tensors:
            value = tensor.get_tensor()
            self._variable(name)._share_data_with(value.get_tensor() if tensor.is_dist() else value)
        with paddle.static.scope_guard(self._scope):
            loss = self.dist_model(input_ids, labels, labels)
        self._show()
        return 0.0 if loss is None else float(np.mean(np.asarray(loss)))

    def _show(self) -> None:
        share(self._tensors, self._scope)

    def _variable(self, name: str):
        return self._scope.find_var(name).get_tensor()


def share(tensors: list[tuple[paddle.Tensor, str]], scope: paddle.static.Scope) -> None:
    """Make the dygraph tensors share the program's variables of these names in ``scope``."""
    for tensor, name in tensors:
        seen = paddle.Tensor(scope.find_var(name).get_tensor())
        if tensor.is_dist():
            seen = dtensor_from_local(seen, tensor.process_mesh, tensor.placements)
        tensor.get_tensor()._share_data_with(seen.get_tensor())


def _states_of(optimizer, states: dict[str, paddle.Tensor]) -> list[tuple[paddle.Tensor, str]]:
    """Set the states of ``optimizer`` to the program's, by variable name; returns them with their names.

    States of other stages' parameters are skipped.
    """
    inner, pairs = optimizer._inner_opt, []
    names = {name.rpartition("_")[0]: name for name in states}  # without Paddle's numeric suffix
    masters = {parameter: names.get(f"{parameter}_fp32_master") for parameter in inner._master_weights}
    inner._master_weights = {parameter: states[name] for parameter, name in masters.items() if name}
    for name in filter(None, masters.values()):
        states[name].name = name  # the name that the optimizer uses for the other states
        pairs.append((states[name], name))
    for kind, of_parameters in inner._accumulators.items():
        for parameter in list(of_parameters):
            name = names.get(f"{parameter}_{kind}")
            if name is None:
                del of_parameters[parameter]
                continue
            of_parameters[parameter] = states[name]
            pairs.append((states[name], name))
    return pairs


def _spec(tensor: paddle.Tensor, name: str) -> DistributedInputSpec:
    return DistributedInputSpec.from_dtensor(tensor, name)


def _strategy(settings: Settings) -> dist.Strategy:
    parts, stages = settings.accumulation, settings.degrees.pp
    return dist.Strategy(
        {
            "recompute": {"enable": settings.recompute, "refined_ops_patterns": []},
            "gradient_merge": {"enable": parts > 1, "k_steps": parts, "avg": True},
            "pipeline": {
                "enable": stages > 1,
                # 1F1B needs at least one micro batch per stage.
                "schedule_mode": "1F1B" if parts >= stages else "FThenB",
                "accumulate_steps": parts,
                "pp_degree": stages,
            },
        }
    )
