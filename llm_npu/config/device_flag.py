"""The ``device`` argument, read before paddle or paddlenlp may be imported."""

from __future__ import annotations

from collections.abc import Sequence


def device_from(argv: Sequence[str]) -> str:
    """The device that the arguments ``argv`` (without the program's name) or their file ask for; default npu.

    One of ``npu`` (a card if there is one, else the virtual NPU), ``npu:N``, ``virtual_npu``, ``npu:card`` (no
    fall-back) and ``cpu``; ValueError for anything else.
    """
    raise NotImplementedError
