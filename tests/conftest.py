"""The pytest process runs on the virtual NPU: a process chooses its device once, before paddle is imported.

Tests that need another environment start a process of their own with the fixture ``run_python``.
"""

import contextlib
import faulthandler
import gc
import importlib.util
import os
import signal
import site
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import hypothesis
import pytest
import ranks
from places import TESTS

import paddle_fused
import virtual_npu
from paddle_fused import paddle_release

gc.disable()  # until the tests are collected: a fifth of the time of the imports
# The many processes that tests start would each compile the sources again: up to a second for each process.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
THREADS = "2"
_STDERR = pytest.StashKey()
# An environment has PaddleNLP or PaddleFormers. {library: folders and files of tests that need it}; single
# tests in other files have the marker ``paddlenlp``.
NEED_LIBRARY = {
    "paddlenlp": (
        "config/test_model_checks.py",
        "data/test_packed_training.py",
        "docs",
        "inference",
        "launch/test_stopping.py",
        "models",
        "parallel",
        "tools/benchmarks",
        "tools/plan/test_plan_answer.py",
        "tools/plan/test_plan_memory.py",
        "tools/plan/test_plan_program.py",
        "tools/test_nan_inf.py",
        "tools/test_numerics.py",
        "training/checkpoint/test_checkpoint.py",
        "training/checkpoint/test_checkpoint_ranks.py",
        "training/checkpoint/test_checkpoint_tensors.py",
        "training/test_nonfinite.py",
        "training/test_patches.py",
        "training/test_run_sft.py",
        "training/test_backend_report.py",
    ),
    "paddleformers": ("formers",),
}
MISSING = [name for name in NEED_LIBRARY if importlib.util.find_spec(name) is None]

for _name in [name for name in os.environ if name.startswith("VIRTUAL_NPU_")]:
    del os.environ[_name]  # the tests are about the defaults, unless they say otherwise
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = THREADS
os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle's log: errors only
virtual_npu.deactivate()
_INACTIVE = dict(os.environ)  # as the environment is for somebody who has not activated anything
os.environ["VIRTUAL_NPU_QUIET"] = "1"
os.environ["VIRTUAL_NPU_AICPU_WARNINGS"] = "0"  # tests use float64 on purpose
if paddle_release.before(3, 1):  # 3.0 asks for it where a mesh has one process, too
    with socket.socket() as _free:
        _free.bind(("127.0.0.1", 0))
        os.environ["PADDLE_TRAINER_ENDPOINTS"] = f"127.0.0.1:{_free.getsockname()[1]}"
virtual_npu.activate()
# A shell's job behind it ignores Ctrl-C, what nohup starts SIGHUP, and so do the programs that they start:
# some tests send it to them.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)
# The same examples in every run, however slow the machine: whether a run passes does not depend on luck.
# ``--hypothesis-profile default`` draws others.
hypothesis.settings.register_profile(
    "steady",
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")


def pytest_configure(config):
    config.stash[_STDERR] = os.fdopen(os.dup(2), "w")  # as it is before a test's output is captured
    if config.getoption("seconds") < float("inf"):
        config.pluginmanager.register(TimeLimit(config.getoption("seconds")))


def pytest_report_header(config):
    return [f"{library} is not installed: tests that need it are not collected" for library in MISSING]


def pytest_ignore_collect(collection_path, config):
    needing = [TESTS / path for library in MISSING for path in NEED_LIBRARY[library]]
    if collection_path in needing:
        return True
    # The default run need not import a file to deselect all of its tests.
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    only_slow = "\npytestmark = pytest.mark.slow\n" in collection_path.read_text(encoding="utf-8")
    return True if only_slow and collection_path not in named else None


def pytest_collection_finish(session):
    gc.enable()
    gc.freeze()  # collections during tests skip the objects of Paddle's and PaddleNLP's modules
    gc.set_threshold(10_000)  # with Python's 700, parsing the project's sources takes five times as long
    # A crash shows its test: pytest has taken the signals for that, and Paddle's import takes them over.
    faulthandler.disable()
    faulthandler.enable(session.config.stash[_STDERR])


def pytest_xdist_auto_num_workers(config):
    """``pytest`` alone, the default run, has a process for each of two cores; a choice of tests has none.

    Slow tests take whole machines, and some measure how soon a loss is noticed. ``-n N`` says otherwise.
    """
    whole = config.args_source is config.ArgsSource.TESTPATHS and config.option.markexpr == "not slow"
    return min(2, os.cpu_count() or 1) if whole else 0


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(config, items):
    """Mark as slow the parameter sets that a test's marker ``sampled`` leaves out of the default run.

    ``sampled`` keeps one set for each device; ``sampled(N)`` N sets, evenly spaced; ``sampled(key=KEY)`` one
    set for each value of KEY(parameters). Without the marker all sets run by default.
    """
    needing = [item for item in items if any(item.get_closest_marker(library) for library in MISSING)]
    if needing:
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in set(needing)]
    tests = {}
    for item in items:
        if hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in tests.values():
        if marker := same[0].get_closest_marker("sampled"):
            for item in set(same) - set(_sample(same, *marker.args, **marker.kwargs)):
                item.add_marker(pytest.mark.slow)
    part, parts = map(int, config.getoption("begin").split("/"))
    files = list(dict.fromkeys(item.path for item in items))
    # A file that is named before a folder that it is in comes first: pytest 9 collects it with the folder.
    named = (config.invocation_params.dir / config.args[0].partition("::")[0]).resolve()
    first = [path for path in files if path == named]
    others = [path for path in files if path != named]
    begin = len(others) * part // parts
    place = {path: number for number, path in enumerate([*first, *others[begin:], *others[:begin]])}
    items.sort(key=lambda item: place[item.path])


def _sample(same, count=None, key=lambda parameters: parameters.get("device")):
    if count is not None:
        return same[:: max(1, len(same) // count)]
    fast = [item for item in reversed(same) if not item.get_closest_marker("slow")]
    return {key(item.callspec.params): item for item in fast}.values()


class TimeLimit:
    """Begins no test after ``seconds``, and reports at the end which part of the chosen tests ran."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds
        self.ran, self.left_out = [], []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        over = time.monotonic() > self.end
        (self.left_out if over else self.ran).append(item.location[0])
        return True if over else None

    def pytest_terminal_summary(self, terminalreporter):
        chosen = len(self.ran) + len(self.left_out)
        part = f"{self.ran[0]} to {self.ran[-1]}" if self.ran else "none"
        terminalreporter.write_line(f"{len(self.ran)} of {chosen} chosen tests ran: {part}")
        if self.left_out:
            terminalreporter.write_line(f"time was over before {self.left_out[0]}")


def pytest_addoption(parser):
    parser.addoption(
        "--begin", default="0/1", help="K/N: with the files from part K of N on, then the others"
    )
    parser.addoption(
        "--seconds",
        type=float,
        default=float("inf"),
        help="begin no test after so many seconds; say which did not run",
    )
    parser.addoption("--kills", type=int, default=10, help="how many processes test_kills.py kills")
    parser.addoption("--faults", type=int, default=4, help="how many machines test_lost_machines.py loses")
    parser.addoption("--seed", type=int, default=0, help="of the runs that are compared to a few roundings")


def _child_environment(variables: dict[str, str | None]) -> dict[str, str]:
    package_parent = str(Path(paddle_fused.__file__).resolve().parents[1])
    environment = {**_INACTIVE, **variables}
    if package_parent not in site.getsitepackages():  # the tests run from a source folder
        entries = [environment.get("PYTHONPATH"), package_parent]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, entries))
    return {name: value for name, value in environment.items() if value is not None}


@pytest.fixture(scope="session")
def run_python():
    """A function that runs ``python ARGUMENTS...`` where the virtual NPU is not active, and waits for it.

    ``variables`` are added to its environment; None takes one out. ``cwd`` is its working folder. It may take
    ``timeout`` seconds, which is there for programs that hang.
    """

    def run(*arguments, cwd=None, timeout=ranks.TIMEOUT, **variables) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=_child_environment(variables),
            cwd=cwd,
            timeout=timeout,
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture(scope="session")
def run_elsewhere():
    """A function as ``run_python``'s that runs ``program``, which is to find nothing of these sources."""

    def run(program, *arguments, cwd, timeout=ranks.TIMEOUT, **variables) -> subprocess.CompletedProcess:
        return subprocess.run(
            [program, *map(str, arguments)],
            env={name: value for name, value in {**_INACTIVE, **variables}.items() if name != "PYTHONPATH"},
            cwd=cwd,
            timeout=timeout,
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def start_python():
    """As ``run_python``, without waiting: a function that returns the process, which the test's end kills."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **variables):
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                env=_child_environment(variables),
                stdout=stdout,
                stderr=stderr,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def run_program(run_python, tmp_path):
    """A function that runs the program ``text`` on the virtual NPU in a process of its own."""

    def run(text, **options) -> subprocess.CompletedProcess:
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(text))
        return run_python("-m", "virtual_npu", file, **options)

    return run


@pytest.fixture(scope="session")
def seed(pytestconfig) -> int:
    """Of weights and samples of runs that are compared to a few roundings (``--seed``)."""
    return pytestconfig.getoption("seed")


@pytest.fixture(autouse=True)
def _first_device():
    """Every test begins on the first device, whichever one the test before it has left."""
    paddle = sys.modules.get("paddle")  # tests that need no paddle do not wait for its import
    if paddle:
        paddle.set_device("npu:0")


@pytest.fixture
def on_npu():
    """The test runs on the first device, whichever one the test before it has left."""
    import paddle  # not above: tests that need no device do not wait for the import

    paddle.set_device("npu:0")


@pytest.fixture
def on_cpu():
    """The test runs on the CPU place."""
    import paddle

    paddle.set_device("cpu")


@pytest.fixture(params=["cpu", "npu:0"])
def device(request):
    """The test runs on each device, whose name this is."""
    import paddle

    paddle.set_device(request.param)
    return request.param


@pytest.fixture(autouse=True)
def no_named_random_states():
    """A trainer registers generator states of its device by name; recompute would restore them on another."""
    module = sys.modules.get("paddle.distributed.fleet.layers.mpu.random")
    if module is not None:
        module.get_rng_state_tracker().reset()
