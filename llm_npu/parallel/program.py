"""The static program of a step, from ``dist.to_static``."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.api import dtensor_from_local
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

from llm_npu.parallel.loss import CausalLoss
from llm_npu.parallel.settings import Settings


class Program:
    """Forward, backward and optimizer for micro batches of the shapes of ``input_ids`` and ``labels``.

    Its variables are in a scope of its own, where those of other programs of the process have no names. They
    are the layer's parameters and the optimizer's states in dygraph, to be read and set between steps.
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
                lambda loss, _labels: loss / settings.accumulation,
                optimizer,
                _strategy(settings),
                input_spec=[inputs, [_spec(labels, "loss_labels")]],
            )
            self.dist_model.train()
            states = self.dist_model.state_dict("opt")
        # Parameters, and other tensors that layers keep: rotary tables.
        taken = self.dist_model._engine.concrete_program.parameters[0]
        self._tensors = [(tensor, tensor.name) for tensor in taken if self._scope.find_var(tensor.name)]
        self._tensors += _states_of(optimizer, states)
        self._show()

    def step(self, input_ids: paddle.Tensor, labels: paddle.Tensor) -> float:
        """The mean loss of the micro batches in [rows, S], one after the other."""
        for tensor, name in self._tensors:
            value = tensor.get_tensor()
            self._variable(name)._share_data_with(value.get_tensor() if tensor.is_dist() else value)
        with paddle.static.scope_guard(self._scope):
            loss = self.dist_model(input_ids, labels, labels)
        self._show()
        return float(np.sum(np.asarray(loss)))

    def _show(self) -> None:
        """Lets the tensors of dygraph see the program's variables."""
        for tensor, name in self._tensors:
            seen = paddle.Tensor(self._variable(name))
            if tensor.is_dist():
                seen = dtensor_from_local(seen, tensor.process_mesh, tensor.placements)
            tensor.get_tensor()._share_data_with(seen.get_tensor())

    def _variable(self, name: str):
        return self._scope.find_var(name).get_tensor()


def _states_of(optimizer, states: dict[str, paddle.Tensor]) -> list[tuple[paddle.Tensor, str]]:
    """Gives ``optimizer`` the program's states, by the names of their variables, in place of values of its
    program; returns them with their names.
    """
    names = {name.rpartition("_")[0]: name for name in states}  # without the number that Paddle adds
    found = []
    for kind, of_parameters in optimizer._inner_opt._accumulators.items():
        for parameter in of_parameters:
            name = names[f"{parameter}_{kind}"]
            of_parameters[parameter] = states[name]
            found.append((states[name], name))
    return found


def _spec(tensor: paddle.Tensor, name: str) -> DistributedInputSpec:
    return DistributedInputSpec.from_dtensor(tensor, name)


def _strategy(settings: Settings) -> dist.Strategy:
    """Gradients are added up: where Paddle takes their mean it does so behind the clipping by their norm."""
    parts = settings.accumulation
    return dist.Strategy(
        {
            "recompute": {"enable": settings.recompute, "refined_ops_patterns": []},
            "gradient_merge": {"enable": parts > 1, "k_steps": parts, "avg": False},
        }
    )
