"""The cases that swiglu and geglu share: activation(first) * second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import paddle

from .case import OpCase


@dataclass(frozen=True)
class Gated:
    """Cases of one operator.

    Attributes:
        function: the operator, of x and y or of x alone.
        activation: of numpy arrays in float64.
        suffix: of the names of cases.
    """

    operator: str
    function: Callable
    activation: Callable
    suffix: str = ""

    def two(self, *shape: int) -> OpCase:
        return OpCase(
            operator=self.operator,
            name=f"x and y {list(shape)}{self.suffix}",
            arrays=lambda random: {
                "x": 3 * random.standard_normal(shape),
                "y": random.standard_normal(shape),
            },
            call=lambda t: (self.function(t["x"], t["y"]),),
            golden=lambda a: (self.activation(a["x"]) * a["y"],),
            gradients=("x", "y"),
        )

    def halves(self, *shape: int) -> OpCase:
        half = shape[-1] // 2
        return OpCase(
            operator=self.operator,
            name=f"x {list(shape)}{self.suffix}",
            arrays=lambda random: {"x": 3 * random.standard_normal(shape)},
            call=lambda t: (self.function(t["x"]),),
            golden=lambda a: (self.activation(a["x"][..., :half]) * a["x"][..., half:],),
            gradients=("x",),
        )

    def slices(self, name: str, first: slice, second: slice) -> OpCase:
        """Strided rows: slices of one tensor, with the activated one last."""
        return OpCase(
            operator=self.operator,
            name=f"{name} slices of [3, 5, 48]",
            arrays=lambda random: {"both": 3 * random.standard_normal((3, 5, 48))},
            call=lambda t: (self.function(t["both"][..., first], t["both"][..., second]),),
            golden=lambda a: (self.activation(a["both"][..., first]) * a["both"][..., second],),
            gradients=("both",),
        )

    def random(self, random) -> OpCase:
        shape = [*map(int, random.integers(0, 5, random.integers(0, 3)))]
        width = int(random.integers(1, 80))
        return self.two(*shape, width) if random.random() < 0.5 else self.halves(*shape, 2 * width)


def invalid_calls(operator: str, function: Callable) -> list[tuple[str, Callable]]:
    return [
        (f"{operator}.even", lambda: function(paddle.ones([4, 31]))),
        (f"{operator}.same_shape", lambda: function(paddle.ones([4, 32]), paddle.ones([4, 31]))),
        (f"{operator}.same_dtype", lambda: function(paddle.ones([4, 32]), paddle.ones([4, 32], "float16"))),
    ]
