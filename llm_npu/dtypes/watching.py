"""Watches running code: every kernel on the virtual NPU; operators and the plugin's log on a card."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, get_args

import paddle
from paddle import nn

import virtual_npu
from llm_npu.core.errors import UserError
from virtual_npu import AICPUWarning, HostFallback
from virtual_npu.source_lines import of_frame, program_of_frame

from . import sources
from .operators import FallbackHooks
from .placing import Call, leaves, of_program
from .report import WIDE, Finding, Report, report_of

PLUGIN_LOG, PLUGIN_LOG_LEVEL = "npu_op_runner", 2
# glog: severity, date, time, thread, file:line] message
_LINE = re.compile(r"[IWEF]\d{4,8} [\d:.]+\s+(?P<thread>\d+) (?P<file>[^\s:]+):\d+\] ?(?P<message>.*)")
_OPERATOR = re.compile(r"NpuAclnnOpRunner: (?P<name>\w+)")
_AICPU = "Kernel is running on the AICPU"
Action = Literal["warn", "error", "collect"]


def watch(model: nn.Layer | None = None, action: Action = "warn") -> Watch:
    """Context that records every operator that would leave a card's cores because of a dtype.

    On the virtual NPU, it covers every kernel of forward, backward and optimizer, in dygraph and in captured
    programs. On a card and on the CPU, it covers the operators called from Python. On a card, it also reads
    float64 entries in paddle-custom-npu's log (``AICPULines``).

    Args:
        model: used to report the paths of layers.
        action: "warn" emits one ``AICPUWarning`` per site (operator, layer, line), "error" raises
            RuntimeError at the operator, "collect" only records.
    """
    if action not in get_args(Action):
        raise UserError(f"action is {action!r}; accepted: {', '.join(map(repr, get_args(Action)))}")
    return Watch(model, action)


class Watch:
    """See `watch`. ``report()`` returns the findings so far."""

    def __init__(self, model: nn.Layer | None, action: Action):
        self._model, self._action = model, action
        self._paths: dict[int, str] = {}
        self._sites: dict[tuple, Finding] = {}  # operator, dtype, place, layer, line -> the first finding
        self._counts: Counter[tuple] = Counter()
        self._programs: dict[int, tuple] = {}  # id of a captured program -> the program and its findings
        self._logged = AICPULines()
        self._running = contextlib.ExitStack()
        self._thread: int | None = None  # the watching thread

    def __enter__(self) -> Watch:
        self._thread = threading.get_ident()
        if self._model is not None:
            named = self._model.named_sublayers(include_self=True)
            self._paths = {id(layer): path for path, layer in named}
        if not paddle.device.get_device().startswith("npu"):
            self._running.enter_context(FallbackHooks(self._called))
        elif virtual_npu.is_active():
            self._running.enter_context(virtual_npu.watch_host_fallbacks(self._on_fallback))
        else:
            self._running.enter_context(FallbackHooks(self._called))
            self._running.enter_context(_vlog())
            self._running.enter_context(lines_removed_from_stderr(self._logged.take))
        return self

    def __exit__(self, *error) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop watching."""
        self._running.close()

    def report(self) -> Report:
        """The sites with their counts; sources of float64 first."""
        logged = [
            Finding("operator", name, "float64", "aicpu", is_source=False, count=count)
            for name, count in self._logged.tensors.items()
        ]
        findings = [replace(finding, count=self._counts[site]) for site, finding in self._sites.items()]
        return report_of([*findings, *logged], "the kernels that ran")

    def _on_fallback(self, fallback: HostFallback) -> bool:
        if fallback.dtype not in WIDE and leaves(fallback.kernel, fallback.dtype) is None:
            return False
        frame = sys._getframe()
        if of_frame(frame) is None:  # a thread of Paddle's executor; the caller waits for it
            frame = sys._current_frames().get(self._thread)
        program = program_of_frame(frame)
        if program is not None and (known := self._lines_of(program, fallback)):
            return max(map(self._note, known))
        finding = Finding(
            "operator",
            fallback.kernel,
            fallback.dtype,
            fallback.placement,
            fallback.shape,
            sources.layer_of_frame(frame, self._paths),
            of_frame(frame),
            fallback.is_source,
        )
        return self._note(finding)

    def _lines_of(self, program, fallback: HostFallback) -> list[Finding]:
        """The matching operators of a captured program, whose kernels run without a Python stack."""
        if id(program) not in self._programs:
            self._programs[id(program)] = program, list(of_program(program, self._model))
        wanted = fallback.kernel, fallback.dtype
        same = [row for row in self._programs[id(program)][1] if (row.name, row.dtype) == wanted]
        return [row for row in same if row.shape == fallback.shape] or same

    def _called(self, kernel: str, call: Call) -> None:
        frame = sys._getframe()
        finding = call.finding(kernel, sources.layer_of_frame(frame, self._paths), of_frame(frame))
        if self._note(finding):
            raise RuntimeError(str(finding))

    def _note(self, finding: Finding) -> bool:
        """Count the site, report it on first occurrence, and return whether it is an error."""
        site = finding.name, finding.dtype, finding.place, finding.layer, finding.source
        self._sites.setdefault(site, finding)
        self._counts[site] += 1
        if self._counts[site] == 1 and self._action == "warn":
            file, line = (finding.source.file, finding.source.line) if finding.source else ("<unknown>", 0)
            warnings.warn_explicit(str(finding), AICPUWarning, file, line)
        return self._action == "error"


@contextlib.contextmanager
def _vlog() -> Iterator[None]:
    """Context in which the plugin logs its operators."""
    paddle.base.core.set_vlog_level({PLUGIN_LOG: PLUGIN_LOG_LEVEL})
    try:
        yield
    finally:
        paddle.base.core.set_vlog_level({PLUGIN_LOG: 0})


class AICPULines:
    """Counts the float64 tensors of each aclnn operator in paddle-custom-npu's log.

    The plugin's npu_op_runner.h logs every aclnn operator at level 1 ("NpuAclnnOpRunner: aclnnAdd"). At level
    2, it logs a line for each float64 tensor ("Kernel is running on the AICPU.For better performance. use
    other dtypes."), without operator or shape. glog shows level 2 with ``GLOG_vmodule=npu_op_runner=2`` or
    ``paddle.base.core.set_vlog_level``, and ``GLOG_minloglevel=0``.
    """

    def __init__(self):
        self.tensors: Counter[str] = Counter()
        self._running: dict[str, str] = {}  # thread -> its current operator

    def take(self, line: str) -> bool:
        """Count a line about an operator of the plugin; return whether it was such a line."""
        match = _LINE.match(line)
        if not match or os.path.splitext(os.path.basename(match["file"]))[0] != PLUGIN_LOG:
            return False
        operator = _OPERATOR.match(match["message"])
        if operator:
            self._running[match["thread"]] = operator["name"]
        elif match["message"].startswith(_AICPU):
            self.tensors[self._running.get(match["thread"], "an operator without a name")] += 1
        return True


@contextlib.contextmanager
def lines_removed_from_stderr(take: Callable[[str], bool]) -> Iterator[None]:
    """Context that removes the lines for which ``take`` is true from file descriptor 2."""
    sys.stderr.flush()
    shown = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def pump() -> None:
        with open(reading, "rb") as lines, open(shown, "wb", buffering=0, closefd=False) as screen:
            for line in lines:
                if not take(line.decode(errors="replace")):
                    screen.write(line)

    reader = threading.Thread(target=pump, name="plugin log", daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(shown, 2)  # closes the last write end, so the reader gets end-of-file
        reader.join()
        os.close(shown)
