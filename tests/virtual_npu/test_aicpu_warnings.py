"""The virtual NPU warns of float64 in any program, at the program's line."""

import inspect
import os
import sys
import threading
import warnings

import numpy as np
import paddle
import pytest
from paddle import nn

from virtual_npu import (
    AICPUWarning,
    AICPUWarnings,
    aicpu_warnings,
    host_fallbacks,
    source_lines,
    watch_host_fallbacks,
)

pytestmark = pytest.mark.usefixtures("on_npu")


@pytest.fixture
def start(monkeypatch):
    """A function that starts the warnings anew; it returns them."""
    before = host_fallbacks._warner, host_fallbacks._warned_reports == host_fallbacks._EVERY_FALLBACK
    monkeypatch.delenv("PADDLE_TRAINER_ID", raising=False)

    def new(every=False):
        site_warnings = AICPUWarnings()
        host_fallbacks.warn_of_fallbacks(site_warnings, every)
        return site_warnings

    yield new
    host_fallbacks.warn_of_fallbacks(*before)


@pytest.fixture
def wide(start):
    """A float64 tensor."""
    return paddle.to_tensor(np.ones([8, 8]))


@pytest.fixture
def caught():
    """The warnings of the test."""
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        yield log


def sites(caught):
    """Line relative to the caller's function, and kernel, of each warning, all in this file."""
    aicpu = [warning for warning in caught if issubclass(warning.category, AICPUWarning)]
    assert {warning.filename for warning in aicpu} <= {__file__}
    first = inspect.currentframe().f_back.f_code.co_firstlineno
    return [(warning.lineno - first, str(warning.message).split()[4]) for warning in aicpu]


def test_once_for_each_kernel_dtype_and_line(start, wide, caught):
    watch = start()
    for _ in range(3):
        wide * 2
    _ = wide + wide, paddle.matmul(wide, wide)
    assert sites(caught) == [(3, "scale"), (4, "add"), (4, "matmul")]
    assert "float64 [8, 8] on its AICPU" in str(caught[0].message)
    assert "float32" in str(caught[0].message)
    heading, first, *_ = watch.summary().splitlines()
    assert heading.startswith("5 kernel calls at 3 sites")
    line = test_once_for_each_kernel_dtype_and_line.__code__.co_firstlineno + 3
    assert first.strip().startswith(f"3 x scale float64, {__file__}:{line}")


def test_a_program_without_float64_is_silent(start, caught):
    watch = start()
    layer = nn.Linear(4, 4)
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=layer.parameters())
    for dtype in ("float32", "bfloat16"):
        with paddle.amp.auto_cast(dtype="bfloat16", enable=dtype == "bfloat16"):
            layer(paddle.to_tensor([[1.0, 2, 3, 4]])).sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    paddle.topk(paddle.arange(6), 2)  # integers on the AICPU are not float64
    assert not sites(caught) and watch.summary() == ""


def test_an_error_surfaces_at_the_line(start, wide):
    start()
    with warnings.catch_warnings():
        warnings.simplefilter("error", AICPUWarning)
        for function in (lambda: wide * 2, lambda: paddle.add(wide, wide), lambda: nn.ReLU()(wide)):
            with pytest.raises(AICPUWarning, match=f"{__file__}:{function.__code__.co_firstlineno}") as error:
                function()
            frames = [frame.name for frame in error.traceback]
            assert "<lambda>" in frames
            assert sys.gettrace() is None
    assert (wide * 2).sum().item() == 128


def test_an_error_in_backward_surfaces(start, wide):
    wide.stop_gradient = False
    loss = (wide * wide).sum()
    start()
    with warnings.catch_warnings(), pytest.raises(AICPUWarning):
        warnings.simplefilter("error", AICPUWarning)
        loss.backward()


def test_a_debugger_keeps_its_trace(start, wide, monkeypatch):
    start()
    tracer = sys.gettrace()
    sys.settrace(lambda *event: None)
    try:
        with warnings.catch_warnings(), pytest.raises(NotImplementedError, match="AICPUWarning"):
            warnings.simplefilter("error", AICPUWarning)
            wide * 2
        assert sys.gettrace() is not None
    finally:
        sys.settrace(tracer)


def squares(x):
    doubled = x + x
    return doubled * x


@pytest.mark.parametrize("full_graph", [True, False])
def test_captured_programs_have_the_lines_of_their_operators(start, wide, caught, full_graph):
    captured = paddle.jit.to_static(squares, full_graph=full_graph)
    watch = start()
    captured(wide), captured(wide)
    first = squares.__code__.co_firstlineno
    sites_here = [
        (warning.lineno - first, str(warning.message).split()[4])
        for warning in caught
        if warning.filename == __file__
    ]
    assert {(1, "add"), (2, "multiply")} <= set(sites_here)
    assert "2 x add float64" in watch.summary()


def test_an_error_in_a_captured_program_surfaces(start, wide):
    captured = paddle.jit.to_static(squares, full_graph=True)
    captured(wide)
    start()
    with warnings.catch_warnings():
        warnings.simplefilter("error", AICPUWarning)
        with pytest.raises(AICPUWarning, match=f"{__file__}:{squares.__code__.co_firstlineno + 1}"):
            captured(wide)
            sum(range(10))  # the kernels run on a thread of the executor
    assert captured(wide).sum().item() == 128


def test_a_static_program(start, caught):
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            x = paddle.static.data("x", [2, 2], "float64")
            line, y = inspect.currentframe().f_lineno, x * x
            executor = paddle.static.Executor(paddle.CustomPlace("npu", 0))
            start()
            executor.run(feed={"x": np.ones([2, 2])}, fetch_list=[y])
    finally:
        paddle.disable_static()
    assert (line, "multiply") in {(warning.lineno, str(warning.message).split()[4]) for warning in caught}


def test_a_thread_of_python(start, wide, caught):
    start()
    thread = threading.Thread(target=lambda: wide * 2)
    thread.start()
    thread.join()
    assert sites(caught) == [(2, "scale")]


def test_what_a_filter_ignores_is_not_counted(start, wide, caught):
    watch = start()
    warnings.simplefilter("ignore", AICPUWarning)
    wide * 2
    assert not sites(caught) and watch.summary() == ""


def test_filters_by_module_and_message(start, wide, caught):
    start()
    warnings.filterwarnings("ignore", module=__name__.rpartition(".")[2] + "$|" + __name__)
    wide * 2
    warnings.filters.pop(0)
    warnings.filterwarnings("ignore", message="a card would run add ")
    _ = wide + wide, wide * 3
    assert sites(caught) == [(6, "scale")]


def test_at_most_ten(start, wide, caught):
    watch = start()
    for number in range(12):
        exec(compile("\n" * number + "wide * 2", __file__, "exec"), {"wide": wide})
    assert len(sites(caught)) == aicpu_warnings.MOST == 10
    assert watch.summary().startswith("12 kernel calls at more than 10 sites")
    assert watch.summary().endswith("2 x at other sites")


def test_other_ranks_count(start, wide, caught, monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    watch = start()
    wide * 2
    assert not sites(caught)
    assert watch.summary().startswith("rank 1: 1 kernel calls at 1 sites") and "\n" not in watch.summary()
    warnings.simplefilter("error", AICPUWarning)
    with pytest.raises(AICPUWarning):
        wide * 3


def test_the_line_is_of_the_program_not_of_a_library(start, wide, caught):
    layer = nn.Linear(8, 8).to(dtype="float64")
    start()
    layer(wide)
    assert {line for line, _ in sites(caught)} == {3}


def test_a_watch_reports_alone(start, wide, caught):
    watch = start()
    seen = []
    with watch_host_fallbacks(lambda fallback: bool(seen.append(fallback.kernel))):
        wide * 2
    assert seen == ["scale"] and not sites(caught) and watch.summary() == ""


def test_an_exception_of_a_watch_surfaces_at_the_kernel(start, wide):
    def refuse(fallback):
        raise KeyError(fallback.kernel)

    with watch_host_fallbacks(refuse), pytest.raises(KeyError, match="scale"):
        wide * 2


def test_other_fallbacks_on_request(start, caught):
    start(every=True)
    paddle.pow(paddle.arange(6), 2)
    assert (2, "pow") in sites(caught)
    text = next(str(warning.message) for warning in caught if "pow" in str(warning.message))
    assert "on its host" in text and "only for bfloat16, float16, float32" in text


def test_counts_are_shared_with_forked_processes():
    counts = aicpu_warnings.SharedCounts(2)
    assert counts.find("a") == (0, True)
    child = os.fork()
    if child == 0:
        counts.add(0, 2)
        counts.find("b")
        counts.find("c")
        counts.add(2, 5)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert counts.find("b") == (1, False)
    assert list(counts) == [("a", 2), ("b", 0)] and counts.others == 5


def test_libraries_are_not_the_program():
    assert source_lines.is_inside(paddle.__file__) and source_lines.is_inside(np.__file__)
    assert source_lines.is_inside(os.__file__) and source_lines.is_inside("<frozen runpy>")
    assert not source_lines.is_inside("<string>") and not source_lines.is_inside(__file__)
    own = aicpu_warnings.__file__.replace("virtual_npu", "llm_npu/training")
    assert source_lines.is_inside(own, source_lines.LIBRARIES) and not source_lines.is_inside(own)
