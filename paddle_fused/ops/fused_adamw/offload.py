"""AdamW steps whose moments and master weights are in host memory.

    device   the states of a group of parameters are copied to the device, updated there, and copied back;
             the states of the next group are copied meanwhile, on a separate stream
    host     the gradients are copied to the host, the update runs there, and the weights are copied back

Bytes per element over the bus, of a 16-bit parameter with master weights and a float32 gradient: device 12 in
each direction, host 4 to the host and 2 back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import paddle

Offload = Literal["device", "host"]
PLACES: tuple[Offload, ...] = ("device", "host")
STATES = ("moment1", "moment2", "moment2_max", "master")
GROUP = 32 << 20  # bytes of states; a call costs more than a small update
HOST = paddle.CPUPlace()

Call = tuple[Any, Any, Any, Any]  # param, grad, State, Settings
Run = Callable[[list[Call]], None]


def to_host(optimizer, parameter) -> None:
    """Move states of ``parameter`` that are new or just loaded to host memory; their names stay the same."""
    masters = optimizer._master_weights
    if (master := masters.get(parameter.name)) is not None:
        masters[parameter.name] = _moved(master)
    owner = parameter if master is None else master
    for states in optimizer._accumulators.values():
        if (state := states.get(owner.name)) is not None:
            states[owner.name] = _moved(state)


def _moved(tensor):
    if tensor.place.is_cpu_place():
        return tensor
    moved = tensor._copy_to(HOST, True)
    moved.name, moved.stop_gradient = tensor.name, True
    return moved


class DeviceUpdates:
    """Runs updates on the device. Two groups of states are on it at a time: the current and the next."""

    def __init__(self, run: Run):
        self._run = run
        self._stream: paddle.device.Stream | None = None

    def __call__(self, calls: list[Call]) -> None:
        if self._stream is None:
            self._stream = paddle.device.Stream()
        groups = list(_groups(calls))
        upcoming = self._upload(groups[0])
        for number, group in enumerate(groups, start=1):
            states, arrived = upcoming
            upcoming = self._upload(groups[number]) if number < len(groups) else ([], None)
            paddle.device.current_stream().wait_event(arrived)
            self._run([(p, g, state, s) for (p, g, _, s), state in zip(group, states, strict=True)])
            for (_, _, host, _), device in zip(group, states, strict=True):
                for name in _present(host):
                    getattr(host, name).copy_(getattr(device, name), True)
            del states, device  # before the group after the next is copied

    def _upload(self, group: list[Call]) -> tuple[list, Any]:
        """The states of a group on the device, and the event of their arrival."""
        # Allocated here: Paddle's statistics do not count what a copy allocates on another stream.
        states = [
            dataclasses.replace(state, **{name: _on_device(getattr(state, name)) for name in _present(state)})
            for _, _, state, _ in group
        ]
        # The allocator may return memory that kernels launched before still use.
        self._stream.wait_event(paddle.device.current_stream().record_event())
        with paddle.device.stream_guard(self._stream):
            for (_, _, host, _), device in zip(group, states, strict=True):
                for name in _present(host):
                    getattr(device, name).copy_(getattr(host, name), False)
        return states, self._stream.record_event()


def _on_device(state):
    """Uninitialized memory for a copy of ``state``."""
    return paddle.empty(state.shape, state.dtype)


class HostUpdates:
    """Runs updates on the host, from copies of the gradients."""

    def __init__(self, run: Run):
        self._run = run

    def __call__(self, calls: list[Call]) -> None:
        rates: dict[int, Any] = {}  # equal learning rates stay one tensor, so that updates are batched
        for group in _groups(calls):
            on_host = []
            for param, grad, state, settings in group:
                rate = state.learning_rate
                rate = rates.setdefault(id(rate), rate._copy_to(HOST, True))
                if state.master is None:
                    weights = param.detach()._copy_to(HOST, True)
                else:
                    weights = state.master.astype(param.dtype)
                state = dataclasses.replace(state, learning_rate=rate)
                on_host.append((weights, grad._copy_to(HOST, True), state, settings))
            self._run(on_host)
            for (param, *_), (weights, *_) in zip(group, on_host, strict=True):
                param.detach().copy_(weights, True)


UPDATES = {"device": DeviceUpdates, "host": HostUpdates}


def _present(state) -> list[str]:
    return [name for name in STATES if getattr(state, name) is not None]


def _groups(calls: list[Call]) -> Iterator[list[Call]]:
    """Consecutive calls whose states take at most ``GROUP`` bytes together; larger states are alone."""
    group: list[Call] = []
    held = 0
    for call in calls:
        state = call[2]
        size = sum(
            math.prod(tensor.shape) * tensor.element_size()
            for tensor in (getattr(state, name) for name in _present(state))
        )
        if group and held + size > GROUP:
            yield group
            group, held = [], 0
        group.append(call)
        held += size
    if group:
        yield group
