"""One step of AdamW over the tensors of a Llama's layers. L layers, H hidden, I intermediate.

torch's fused AdamW has no master weights. Its step in bfloat16 is the usual recipe: cast the gradient to
float32, update the master weights, and copy them to the weights.
"""

from dataclasses import dataclass

import numpy as np

from .base import Work, spread_over, uniform

RATE, DECAY, EPSILON = 0.1, 0.01, 1e-8


@dataclass(frozen=True)
class AdamW(Work):
    layers: int
    hidden: int
    inner: int

    operator, registered = "adamw", "fused_adamw"
    outputs = ("first", "last")  # of the parameters

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        layer = [(self.hidden, self.hidden)] * 4 + [(self.hidden, self.inner)] * 3 + [(self.hidden,)] * 2
        return layer * self.layers

    @property
    def label(self):
        return f"{self.cost_sizes['parameters'] / 1e6:.3g}M in {len(self.shapes)} tensors"

    def arrays(self, random):
        return {f"{kind}{i}": uniform(random, *shape) for i, shape in enumerate(self.shapes) for kind in "pg"}

    def _index(self, name):
        return 0 if name == "first" else len(self.shapes) - 1

    def samples(self, name):
        return (spread_over(self.hidden, 64),)

    def golden(self, arrays, outputs, backward):
        """After the first step, both corrected moments equal the gradient and its square."""
        truth = {}
        for name in self.outputs:
            i, rows = self._index(name), self.samples(name)
            weight, gradient = (arrays[f"{kind}{i}"][rows].astype(np.float64) for kind in "pg")
            truth[name] = weight - RATE * (DECAY * weight + gradient / (np.abs(gradient) + EPSILON))
        return truth

    @property
    def cost_sizes(self):
        return {"parameters": sum(int(np.prod(shape)) for shape in self.shapes)}

    def memory(self, contender, item_size, backward):
        return self.cost(item_size, backward).bytes

    def paddle(self, tensors, contender):
        import paddle

        import paddle_fused

        count = len(self.shapes)
        parameters = []
        for i in range(count):
            tensor = tensors.pop(f"p{i}")
            parameter = paddle.base.framework.EagerParamBase.from_tensor(tensor)
            parameter.grad = tensors.pop(f"g{i}")
            parameters.append(parameter)
        kind = paddle.optimizer.AdamW if contender == "paddle" else paddle_fused.FusedAdamW
        optimizer = kind(
            RATE,
            0.9,
            0.999,
            EPSILON,
            parameters,
            DECAY,
            multi_precision=parameters[0].dtype != paddle.float32,
        )

        def step():
            optimizer.step()
            return parameters[0], parameters[-1]

        return step

    def torch(self, tensors):
        import torch

        count = len(self.shapes)
        parameters = [tensors.pop(f"p{i}") for i in range(count)]
        gradients = [tensors.pop(f"g{i}") for i in range(count)]
        wide = [torch.nn.Parameter(parameter.float()) for parameter in parameters]
        optimizer = torch.optim.AdamW(wide, RATE, (0.9, 0.999), EPSILON, DECAY, fused=True)
        is_narrow = parameters[0].dtype != torch.float32

        def step(_):
            for weight, gradient in zip(wide, gradients, strict=True):
                weight.grad = gradient.float()  # itself, if it is float32
            optimizer.step()
            if is_narrow:
                torch._foreach_copy_(parameters, [weight.detach() for weight in wide])
            updated = parameters if is_narrow else wide
            return updated[0], updated[-1]

        return step
