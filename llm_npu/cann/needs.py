"""The calls of paddle-custom-npu into CANN, by Paddle kernel and by training step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WORKSPACE = "GetWorkspaceSize"
DATA = Path(__file__).parent / "data"


@cache
def read(name: str) -> dict:
    """The contents of the data file ``name``."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Kernel:
    """The calls of one kernel of the plugin.

    Attributes:
        aclnn: the functions that it calls.
        guarded: the functions in ``aclnn`` that it looks up first; if one is missing, it runs ``fallback``.
            A missing unguarded function is called through a null pointer.
        aclop: the operator types that it always runs.
        fallback: the operator types that it runs if a guarded function is missing.
    """

    aclnn: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()
    aclop: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()


@dataclass(frozen=True)
class Use:
    """The callers of a function or an operator type.

    Attributes:
        kernels: the Paddle kernels that call it.
        steps: the steps of Llama training that call it.
        unguarded: the kernels that call it without checking that it exists.
    """

    kernels: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    unguarded: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Kernels and steps for a message, at most three of each."""
        steps = f" ({_few(self.steps)})" if self.steps else ""
        return f"{_few(self.kernels) or 'an unknown kernel'}{steps}"


def _few(names: tuple[str, ...], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass(frozen=True)
class Needs:
    """All calls of a plugin.

    Attributes:
        kernels: by name.
        steps: the steps of Llama training, each with the kernels that it calls.
        libraries: the library of each aclnn function: math, nn, cv or transformer.
        startup: operator types that every process runs before the first aclop.
        looked_up: other functions that the plugin looks up in ``libopapi.so``.
        dtypes: the dtype that an operator type's first input has in training; "model" is the model's dtype.
    """

    kernels: Mapping[str, Kernel]
    steps: Mapping[str, tuple[str, ...]]
    libraries: Mapping[str, str]
    startup: tuple[str, ...]
    looked_up: tuple[str, ...]
    dtypes: Mapping[str, str]

    def use(self, name: str) -> Use:
        """The callers of the function or type ``name``; only training's kernels if they call it."""
        trained = {kernel: step for step, kernels in self.steps.items() for kernel in kernels}
        users = [k for k, calls in self.kernels.items() if name in (*calls.aclnn, *calls.aclop)]
        users = [k for k in users if k in trained] or users
        return Use(
            tuple(users),
            tuple(dict.fromkeys(trained[k] for k in users if k in trained)),
            tuple(k for k in users if name not in self.kernels[k].guarded),
        )

    @property
    def functions_of_training(self) -> tuple[str, ...]:
        return self._of_training("aclnn")

    @property
    def types_of_training(self) -> tuple[str, ...]:
        """The operator types that training always runs, without ``startup``."""
        return self._of_training("aclop")

    def fallback(self, function: str) -> tuple[str, ...]:
        """The operator types that training runs if CANN lacks the guarded ``function``."""
        kernels = [k for k in self._training_kernels() if function in self.kernels[k].guarded]
        types = (t for k in kernels for t in (*self.kernels[k].fallback, *self.kernels[k].aclop))
        return tuple(dict.fromkeys(types))

    def _training_kernels(self) -> tuple[str, ...]:
        return tuple(kernel for kernels in self.steps.values() for kernel in kernels)

    def _of_training(self, kind: str) -> tuple[str, ...]:
        return tuple(sorted({c for k in self._training_kernels() for c in getattr(self.kernels[k], kind)}))


def symbols(functions: Iterable[str]) -> list[str]:
    """The names that the plugin looks up for the aclnn ``functions``."""
    return [symbol for name in functions for symbol in (name, f"{name}{WORKSPACE}")]


@cache
def of_plugin() -> Needs:
    """The calls of the public plugin; ``data/plugin.json`` names its repository and commit."""
    data = read("plugin.json")
    return Needs(
        {name: Kernel(**{k: tuple(v) for k, v in calls.items()}) for name, calls in data["kernels"].items()},
        {step: tuple(kernels) for step, kernels in data["training"].items()},
        {name: part for part, names in data["functions"].items() for name in names},
        tuple(data["startup"]),
        tuple(data["looked_up"]),
        data["dtypes"],
    )
