"""One case of the sweep: a public API, how it is called, and what is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from api_sweep.inputs import Draw

NO_GRADIENT = "no gradient is defined"
OWN_KERNEL = "npu has a kernel of its own, which rounds differently"


def map_draws(function: Callable[[Draw], Any], structure: Any) -> Any:
    """``structure`` (nested lists, tuples and dicts) with every Draw in it replaced by ``function(draw)``."""
    if isinstance(structure, Draw):
        return function(structure)
    if isinstance(structure, list | tuple):
        return type(structure)(map_draws(function, item) for item in structure)
    if isinstance(structure, dict):
        return {key: map_draws(function, item) for key, item in structure.items()}
    return structure


@dataclass(frozen=True)
class Case:
    """``api(*args, **kwargs)``, with a tensor on the place under test for every Draw among the arguments."""

    api: str
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    build: tuple[tuple, dict[str, Any]] | None = None  # arguments of the constructor, when ``api`` is a Layer
    call: Callable[..., Any] | None = None  # call(api, *args, **kwargs) when the plain call will not do
    variant: str = ""
    backward: bool = True
    static: bool = False  # through paddle.jit.to_static
    why_forward_only: str = ""
    host_outputs: str = ""  # why outputs stay on the CPU place
    ulps: int = 0  # allowed distance, in units of float32 rounding of the largest element; 0: bit for bit
    why_tolerance: str = ""

    @property
    def id(self) -> str:
        return f"{self.api}[{self.variant}]" if self.variant else self.api

    @property
    def compares_gradient(self) -> bool:
        """Whether there is anything to differentiate: a floating point input, or a layer's parameters."""
        differentiable = []
        map_draws(lambda draw: differentiable.append(draw.differentiable), (self.args, self.kwargs))
        return self.backward and (any(differentiable) or self.build is not None)

    def via(self, call: Callable[..., Any]) -> Case:
        return replace(self, call=call)

    def named(self, variant: str) -> Case:
        """A second case of the same API."""
        return replace(self, variant=f"{self.variant}, {variant}" if self.variant else variant)

    def forward_only(self, why: str = NO_GRADIENT) -> Case:
        return replace(self, backward=False, why_forward_only=why)

    def on_host(self, why: str) -> Case:
        return replace(self, host_outputs=why)

    def close(self, ulps: int, why: str) -> Case:
        return replace(self, ulps=ulps, why_tolerance=why)

    def redrawn(self, variant: str, change: Callable[[Draw], Draw]) -> Case:
        """The same call on inputs of another shape or layout."""
        changed = replace(self, args=map_draws(change, self.args), kwargs=map_draws(change, self.kwargs))
        return changed.named(variant)


def case(api: str, *args: Any, **kwargs: Any) -> Case:
    """``case("paddle.clip", normal(3, 5), min=-0.5)``; ``paddle.`` may be left out."""
    return Case(api if api.startswith("paddle.") else f"paddle.{api}", args, kwargs)


def cases_of(names: str, *args: Any, within: str = "", **kwargs: Any) -> list[Case]:
    """The same call for all ``names``, separated by spaces, of the module or class ``within``."""
    return [case(f"{within}.{name}".lstrip("."), *args, **kwargs) for name in names.split()]


def own_kernel(case: Case) -> Case:
    """The virtual NPU computes this one itself: each of the two kernels may be one rounding off."""
    return case.close(2, OWN_KERNEL)


def layer(api: str, build: Iterable[Any], *args: Any, **options: Any) -> Case:
    """``layer("Linear", (5, 3), normal(4, 5))``: calls the layer paddle.nn.<api>(*build, **options).

    The parameters' gradients are compared as well, and the buffers (running statistics) as outputs.
    """
    return Case(f"paddle.nn.{api}", args, build=(tuple(build), options))


def strided(case: Case) -> Case:
    """Non-contiguous inputs: a transposed view, or every second element of a vector."""
    return case.redrawn("strided", Draw.as_view)


def scalar(case: Case) -> Case:
    """0-d inputs."""
    return case.redrawn("0-d", lambda draw: draw.reshaped(()))


def empty(case: Case) -> Case:
    """Inputs whose first dimension is zero."""
    return case.redrawn("empty", lambda draw: draw.reshaped((0, *draw.shape[1:])))


def to_static(case: Case) -> Case:
    """The same call compiled by paddle.jit.to_static."""
    return replace(case.named("to_static"), static=True)


def vary(cases: Iterable[Case], *variations: Callable[[Case], Case], skip: Iterable[str] = ()) -> list[Case]:
    """Every case, followed by its variations; ids in ``skip`` are left out (the CPU place refuses them)."""
    skipped = set(skip)
    varied = [
        varied_case
        for base in cases
        for varied_case in (base, *(variation(base) for variation in variations))
    ]
    unknown = skipped - {case.id for case in varied}
    if unknown:
        raise ValueError(f"skip names no variation: {sorted(unknown)}")
    return [case for case in varied if case.id not in skipped]
